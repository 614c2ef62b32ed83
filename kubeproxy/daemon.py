"""The life story of the process: start, ready, reload, drain, stop."""
