"""Routing rules for answers to preserved client addresses (`rules`, `rule_watch`).

`route_watch` reports routes that are taken away, for the kernel path.
"""
