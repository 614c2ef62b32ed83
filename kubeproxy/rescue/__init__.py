"""Failover on the kernel path: notices endpoints that fail clients, ejects them (passive health checks, outlier
ejection), and sends the clients' first packets again.

The rules of `kubeproxy.netfilter.nftables.rescue` send copies of SYNs and reports of failures to the rescue process, by
NFLOG. The modules, in the order in which a packet passes through them:

nflog         messages of NFLOG, the kernel's packet log
packets       the meaning of a packet (a SYN, a refusal, an error about another packet), and the packet to send again
copies        the SYNs of the last seconds
resends       decides which packets are sent again, and when
raw_socket    sends packets of clients on this host; those of other clients enter again (see netfilter/reentry)
main          the rescue process, which reads, decides and sends without any privilege
protocol      the messages between the rescue process and the control process
process       the control process's side: its child process and channel
silence       finds endpoints that have not answered
kernel_path_ejections  endpoints of the kernel path that have failed, and when each is tried again
ejector       ejects endpoints in the rules, and tells the workers
fair_turns    decides which tenant is next if dials or deletions are scarce
probe         tries an endpoint from this node
dials         the dials in progress, and the endpoints that wait for one
lost_routes   finds endpoints that have lost their route
flow_release  deletes flows to failed endpoints, many at a time, so that their packets can be sent again
guardian      the control process's part: keeps the rules alive, ejects endpoints, deletes their flows

The first four, `protocol`, `silence` and `fair_turns` are pure.
"""
