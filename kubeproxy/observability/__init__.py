"""What the operator sees: logs, metrics, health, status.

This room reads the state of other rooms and changes nothing in it. It gets plain values (`picture`), readings through
`kubeproxy.dataplane.interface`, and callables from the daemon.

logs             format of the log, rate limits, the access log
metrics          counters and gauges, the scrape (`exposition`), health checks as indicators (`slis`)
health           decides whether the proxy is live, healthy, ready (pure)
monitor          periodic checks of the event loop, the workers and the endpoints
http             the HTTP server; health check node ports
routes           the pages of the health server and the metrics server; `debug_routes` under /debug/
status           the status of the daemon and the trace of a connection: JSON, text, page
"""
