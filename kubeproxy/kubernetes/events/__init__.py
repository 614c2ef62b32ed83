"""Kubernetes Events: aggregation and recording."""
