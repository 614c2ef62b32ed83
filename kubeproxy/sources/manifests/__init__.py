"""Services and endpoints from manifests: files, directories, web addresses, standard input.

`source` follows them, `check` says what is wrong with them. Nothing is imported here, because `helper`, a process of
its own, wants none of it.
"""
