"""Readers of manifests: files, URLs, streams of YAML and JSON documents.

split cuts texts into documents, json_text into JSON values. parse reads them; go_yaml reads YAML as Kubernetes clients
do. lines finds the line of a field. files and http read from disk and from web servers.
"""
