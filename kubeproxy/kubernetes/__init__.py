"""The Kubernetes API: objects, clients, informers and controllers. It knows nothing about proxying.

client            requests to an API server
informer          objects kept in memory, in step with the server
controller        work queue, expectations, owner references, leader election
events            Kubernetes Events
manifests         files, URLs, streams of documents
resource_builder  objects of any kind, read from files and checked by what a server serves
printing          objects and errors as kubectl prints them
api_types         objects with the fields in use; `metadata` has the metadata that controllers need
object_client     reads and writes objects of one resource
delegated_access  lets the server decide whether a client may read one of our pages
selector          label selectors; `timestamps`, times as the API writes them; `invalid_field`, a fault in an object
"""
