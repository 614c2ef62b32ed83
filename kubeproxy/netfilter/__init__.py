"""The wanted rule set as a value, and the adapters that apply it.

ruleset                what is wanted: service address -> proxy port, or endpoints
packet_simulation      what a rule set does to a packet
interface              the methods of an adapter, which is all that other rooms use
select                 finds the adapter for this host; `noop` makes no rules
nftables               a table of our own, one transaction per apply; both data paths
iptables               kube-proxy's chains in the legacy tables
with_routing           either of them together with the routing rules of preserved client addresses (`routing`)
routing                these rules; `lookup` asks for a route, and `route_watch` reports lost routes
conntrack              finds, deletes and counts the kernel's flows
ip_forwarding          finds out whether this node forwards packets, as the kernel path needs
netlink                netlink messages, requests and subscriptions
local_addresses, cidr  the node's own addresses; address ranges
reentry                a device by which a client's packet enters this node once more, at the client's interface
direct_links           finds links on which an endpoint's answer would not come back through this node
cleanup                removes what proxies left on a node; `ipvs` does so for kube-proxy's ipvs mode, and
                       `kube_proxy_rules` finds rules that are not ours to remove
port_holders           finds the processes that have a port
subprocess             runs a program
"""
