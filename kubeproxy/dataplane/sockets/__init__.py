"""Sockets: options, connecting, the client's address, reserved ports, SO_REUSEPORT."""
