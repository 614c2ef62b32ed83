"""Services and endpoints from manifests: files, directories, URLs, standard input.

`source` reads and watches them, `check` reports their faults.
"""
