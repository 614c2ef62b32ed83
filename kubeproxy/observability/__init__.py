"""What the operator sees: logs, metrics, health.

Reads the other rooms through small views (`kubeproxy.dataplane.interface.Counters`, callables that the daemon hands
over) and changes nothing in them.
"""
