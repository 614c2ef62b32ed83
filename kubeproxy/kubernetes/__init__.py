"""The Kubernetes API: objects, clients, informers and controllers. Nothing in this room is specific to a proxy.

client            an HTTP client of an API server
informer          keeps objects of the server in memory
controller        the parts of a controller: work queue, expectations, owner references, leader election
events            records Kubernetes Events
manifests         reads YAML and JSON documents from files and URLs
resource_builder  reads objects of any kind from files, and checks them against a server
printing          prints objects and errors as kubectl does
api_types         objects as structs of the fields in use; `metadata` has the metadata that controllers need
object_client     reads and writes objects of one resource
delegated_access  asks the API server whether a client may read one of this process's HTTP pages
selector          label selectors; `timestamps` converts times; `invalid_field` describes a fault in an object
"""
