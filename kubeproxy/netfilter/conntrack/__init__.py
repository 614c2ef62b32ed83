"""Connection tracking: reads and deletes the kernel's flows (conntrack entries), as far as our rules have translated
them.

messages               requests, and flows in answers (pure); `sock_diag` lists connections of this host
stale_flows            flows that contradict the rules (pure); `delete_flows` deletes them
delete_endpoint_flows  deletes flows to a failed endpoint
flow_table             reads all translated flows; `flow_records` decodes them (pure)
flow_owners            finds the frontend of a flow (pure)
flow_totals            sums bytes and open connections by frontend (pure)
connections_to         counts open connections to some addresses, and detects recent traffic
flow_ends              receives events of deleted flows; `flow_outcomes` finds out how each has ended (pure)
sysctls                sets size and timeouts of the kernel's table; `usage` reads how full it is
"""
