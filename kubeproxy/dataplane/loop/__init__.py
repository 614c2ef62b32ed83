"""The event loop of the byte path: reactor, timeouts, writes and dials at the end of a turn, lag."""
