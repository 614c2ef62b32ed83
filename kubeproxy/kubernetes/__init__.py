"""Kubernetes' API as a library: clients and resources. It knows nothing of proxying."""
