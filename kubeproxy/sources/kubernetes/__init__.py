"""The source that lists and watches Services and endpoints of a Kubernetes API server."""
