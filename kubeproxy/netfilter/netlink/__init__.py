"""Netlink sockets and messages."""
