"""Readers of manifests: files, URLs, streams of YAML and JSON documents.

parse reads texts; go_yaml reads YAML as Kubernetes clients do; lines finds the line of a field.
"""
