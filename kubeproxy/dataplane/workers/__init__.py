"""Worker processes: pool, supervisor, channel, protocol."""
