"""Services and endpoints from a Kubernetes API server, by list-watch."""
