"""The event loop of the byte path."""
