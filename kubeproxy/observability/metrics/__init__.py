"""Prometheus metrics.

control_plane counts what the control process does
traffic       counts of the data plane, by Service
workers       counts of the workers
state         the state of other parts, read at each scrape; `kernel_path` does that for the kernel path
slis          health checks as service level indicators
exposition    the text of a scrape
"""
