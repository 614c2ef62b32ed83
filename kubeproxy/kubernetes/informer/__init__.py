"""Objects of the API server kept in memory, indexed, with handlers for their changes."""
