"""Translates objects of the API to the model, and validates them as an API server does.

A faulty part of an object is left out and reported, and the rest is served. A fault has the path of the field, and a
message with the value found and the values allowed.
"""

from kubeproxy.sources.translate.nodes import node
from kubeproxy.sources.translate.services import not_for_this_proxy, service
from kubeproxy.sources.translate.slices import endpoint_slice, endpoints

__all__ = ["endpoint_slice", "endpoints", "node", "not_for_this_proxy", "service"]
