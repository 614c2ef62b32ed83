"""Connection tracking: the kernel's flows, as far as our rules have translated them.

messages               requests, and flows in answers (pure); `sock_diag` lists connections of this host
stale_flows            flows that contradict the rules (pure); `delete_flows` deletes them
delete_endpoint_flows  flows to a failed endpoint, deleted
flow_table             all translated flows, read; `flow_records` are their bytes as values (pure)
flow_owners            the frontend of a flow (pure)
flow_totals            bytes and open connections by frontend (pure)
flow_ends              reports of ends of flows; `flow_outcomes` is how each has ended (pure)
sysctls                size and timeouts of the kernel's table; `usage` is how full it is
"""
