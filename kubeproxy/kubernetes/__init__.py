"""The Kubernetes API: objects, clients, informers and controllers. Knows nothing about proxying."""
