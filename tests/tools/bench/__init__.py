"""Measures the speed of the daemon beside its peers: `python -m tests.tools.bench`.

Every peer has a network of its own (`stage`): a client host, the node that the proxy runs on, and a host with the
backends, so that no peer pays for the netfilter rules of another. All of them exist at the same time. One is measured
at a time, in alternating rounds, so that a drift of the machine affects all alike. The proxy has one core; the load
and the backends have the others (`cpu_pinning`). `measures` has the loads, `peers` the proxies, and `report` turns the
figures into medians, ratios, a table and JSON. Nothing here asserts a speed.
"""
