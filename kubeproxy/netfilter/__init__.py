"""The wanted rule set as a value, and the adapters that apply it.

ruleset                the wanted rules: service address -> proxy port, or endpoints
packet_simulation      what a rule set does to a packet
interface              the methods of an adapter, which is all that other rooms use
select                 finds the adapter for this host; `noop` makes no rules
nftables               a table of our own, one transaction per apply; both data paths
iptables               kube-proxy's chains in the legacy tables
with_routing           an adapter with the routing rules for preserved client addresses (`routing`)
routing                those routing rules; `lookup` asks for a route, and `route_watch` reports lost routes
conntrack              finds, deletes and counts conntrack entries
ip_forwarding          finds out whether this node forwards packets, as the kernel path needs
netlink                netlink messages, requests and subscriptions
local_addresses, cidr  the node's own addresses; address ranges
reentry                a device that makes a client's packet enter this node again, at the client's interface
direct_links           finds links on which an endpoint's answer would not come back through this node
cleanup                removes what proxies left on a node; `ipvs` does that for kube-proxy's ipvs mode, and
                       `kube_proxy_rules` finds rules that are not ours to remove
port_holders           finds the processes that use a port
subprocess             runs a program
"""
