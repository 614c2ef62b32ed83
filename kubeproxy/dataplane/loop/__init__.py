"""The event loop of the byte path: reactor, timeouts, write queue, lag."""
