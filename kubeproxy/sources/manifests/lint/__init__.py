"""Finds likely mistakes in manifests that the daemon serves as they are. Only `kubeproxy check` uses it.

lines          from the path of a field to its line
references     what objects say of each other: labels, port names, addresses
"""
