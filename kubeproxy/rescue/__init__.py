"""Failover on the kernel path: notices endpoints that fail clients, ejects them (passive health checks, outlier
ejection), and sends the clients' first packets again.

The rules of `kubeproxy.netfilter.nftables.rescue` copy first packets and report failures; a process of its own reads
both. The modules, in the order in which a packet passes them:

nflog         messages of NFLOG, the kernel's packet log
packets       what a packet is: a SYN, a refusal, an error about another packet; and the packet to send again
copies        the SYNs of the last seconds
resends       which packets are sent again, and when
raw_socket    sends packets of clients on this host; those of others enter again (see netfilter/reentry)
main          the process: it reads, decides, sends; without any privilege
protocol      the messages between it and the control process
process       the control process's side: its child process and channel
silence       which endpoints have not answered
ejections     endpoints of the kernel path that have failed, and when each is tried again
ejector       puts the states of endpoints into the rules, and tells the workers
fair_turns    which tenant is next where dials or deletions are short
probe         tries an endpoint from this node
dials         the dials under way, and the endpoints that wait for one
lost_routes   endpoints to which a way has been lost
flow_release  deletes flows to failed endpoints, many at a time, so that their packets can be sent again
guardian      the control process's part: keeps the rules alive, finds silent endpoints, frees flows

The first four, `protocol`, `silence` and `fair_turns` are pure.
"""
