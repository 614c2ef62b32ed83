"""The event loop of the byte path: reactor, timeouts, what is done at the end of a turn, lag."""
