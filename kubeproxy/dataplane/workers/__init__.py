"""Worker processes: pool, supervisor, channel, protocol, and the worker's main."""
