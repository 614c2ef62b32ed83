"""How fast the daemon is, beside its peers: `python -m tests.tools.bench`.

Every peer has a network of its own (`stage`): a client host, the node that the proxy runs on, and a host with the
backends, so that no peer pays for the netfilter rules of another. All of them stand at the same time; one is measured
at a time, in alternating rounds, so that what drifts on the machine drifts for all alike. The proxy has one core; the
load and the backends have the others (`cores`). What is measured stands in `measures`, by whom in `peers`, and what
becomes of the figures in `report`: medians, ratios, a table and JSON. Nothing here asserts a speed.
"""
