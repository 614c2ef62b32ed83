"""Readers of manifests: files, URLs, streams of YAML and JSON documents."""
