"""Maintains the routing rules for answers to preserved client addresses (`rules`, `rule_watch`).

`route_watch` reports removed routes, for the kernel path, and `lookup` finds a route.
"""
