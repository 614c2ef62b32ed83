"""TCP: listener, dial, connection."""
