"""Clients of an API server: configuration, credentials, requests."""
