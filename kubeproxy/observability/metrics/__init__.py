"""Prometheus metrics.

metrics       what the control process counts
traffic       what the data plane counts, by Service
workers       the workers
state         other parts, read at each scrape; `kernel_path` is that of the kernel path
slis          health checks as service level indicators
exposition    the text of a scrape
"""
