"""The HTTP servers."""
