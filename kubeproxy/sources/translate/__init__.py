"""Translates wire objects to the model, with the API server's validation.

A fault does not affect the rest of its object: the faulty part is left out and reported, the rest is served. A fault
has a path, and a message with the value found and the values allowed.
"""

from kubeproxy.sources.translate.nodes import node
from kubeproxy.sources.translate.services import not_for_this_proxy, service
from kubeproxy.sources.translate.slices import endpoint_slice, endpoints

__all__ = ["endpoint_slice", "endpoints", "node", "not_for_this_proxy", "service"]
