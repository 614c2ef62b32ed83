"""The status document, its text, its page and the trace."""
