"""Finds likely mistakes in manifests that the daemon serves as they are. Only `kubeproxy check` uses it.

known_fields   the fields that Kubernetes has, and what an unknown one was probably meant to be
lines          from the path of a field to its line
references     what objects say of each other: labels, port names, addresses
"""
