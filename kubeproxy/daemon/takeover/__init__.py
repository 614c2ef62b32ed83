"""Hot restart: one process takes over from another without losing a connection."""
