"""The source that reads Services and endpoints from manifests: files, directories, URLs and standard input.

`source` reads and watches manifests, and `check` reports their faults. `known_fields` finds unknown fields, and
suggests the field that was probably meant.
"""
