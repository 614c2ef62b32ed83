"""Kubernetes API machinery that knows nothing of proxying."""
