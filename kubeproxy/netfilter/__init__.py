"""The wanted rule set as one value, and the adapters that keep the kernel equal to it.

ruleset      what is wanted: service address -> proxy port, and for whom; `trace` says what that does to a packet
interface    what an adapter can do, and all that others see of it; `select` finds the one for this host, `none` is none
nftables     our own table, one transaction per apply; `nft_table` is its text (pure), `nft_watch` who else changes it
iptables     kube-proxy's chains in the legacy tables: `xt_rules`, `xt_entry` (pure), `xt_extent`, `xt_lock`
routed       either of them together with the routing rules of transparent dials: `routing`, `rtnetlink`, `rule_watch`
conntrack    flows that contradict the rules (pure); `conntrack_kernel`, with `conntrack_wire`, `sockets`, deletes them
conntrack_limits, conntrack_room   how large the kernel's table of flows is made, and how full it is
addresses    this node's own; `ranges` are CIDRs, made disjoint
cleanup      what proxies have left on a node; `leftovers` is what is not ours to remove
command      runs a program; `multicast` hears what the kernel tells all
fake, conntrack_fake   the same in memory, for tests
"""
