"""Readers of manifests: files, URLs, streams of YAML and JSON documents.

values parses texts; go_yaml reads YAML as Kubernetes clients do.
"""
