"""The Kubernetes API: objects, clients, informers and controllers. Knows nothing about proxying.

client            requests to an API server
informer          objects kept in memory, in step with the server
controller        work queue, expectations, owner references, leader election
events            Kubernetes Events
manifests         files, URLs, streams of documents
resource_builder  any object, by what a server says that it serves
printing          objects and errors as kubectl prints them
api_types         objects with the fields in use; `metadata` is what controllers need of their metadata
object_client     reads and writes objects of one resource
delegated_access  whether the server grants a client access to a page of ours
selector          label selectors; `timestamps`, times as the API writes them; `invalid_field`, a fault in an object
"""
