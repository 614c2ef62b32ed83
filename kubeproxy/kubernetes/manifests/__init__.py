"""Reads manifests from files and URLs, and parses their YAML and JSON documents.

`split` splits texts into YAML documents, `json_text` into JSON values. `parse` parses them, and `go_yaml` reads YAML as
Kubernetes clients do. `lines` finds the line of a field. `files` reads from disk, `http` from web servers.
"""
