"""Services and endpoints from manifests: files, directories, URLs, standard input.

`source` reads and watches them, `check` reports their faults. `known_fields` says what an unknown field was probably
meant to be.
"""
