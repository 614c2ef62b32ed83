"""Services and endpoints from a Kubernetes API server: a list-watch of our own, on sockets with deadlines."""
