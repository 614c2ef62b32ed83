"""Wire objects to the model, with the API server's validation.

Pure. One wrong thing never takes the rest of an object with it: what is faulty is left out and named, what is useful
is served. A fault says where (`path`) and what was found beside what is allowed (`message`).
"""

from kubeproxy.sources.translate.nodes import node
from kubeproxy.sources.translate.services import service
from kubeproxy.sources.translate.slices import endpoint_slice, endpoints

__all__ = ["endpoint_slice", "endpoints", "node", "service"]
