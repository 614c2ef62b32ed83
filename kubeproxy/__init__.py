"""kubeproxy: a userspace service proxy for Linux nodes.

The nouns, in the order in which data meets them:

Service, EndpointSlice   what the cluster (or a manifest) asks for                          ``kubeproxy.model``
Source                   where those come from: a Kubernetes API server, manifest files     ``kubeproxy.sources``
Tracker                  what changed since somebody last looked                            ``kubeproxy.proxier``
Frontend                 one listener's worth of a service port: addresses in, endpoints out
Plan                     the difference between the frontends wanted and those that serve (pure)
Proxier                  carries plans out, retries what failed, claims proxy ports
RuleSet                  service address -> proxy port, as one value                        ``kubeproxy.netfilter``
Netfilter                keeps the kernel equal to a RuleSet: nftables, iptables
Message                  the only thing that crosses to the data plane                      ``kubeproxy.dataplane``
Reactor, Listener        an epoll of our own; accepts what the kernel redirected
Balancer                 round robin and affinity (pure)
Dial                     finds an endpoint that answers; several if it must
Splice                   moves bytes both ways, half-close and reset included
Worker                   a process that does nothing but that; it outlives the one that tells it
Daemon                   the life story: start, ready, reload, drain, stop                  ``kubeproxy.daemon.lifecycle``
Takeover               one daemon follows another, and no client notices                  ``kubeproxy.daemon.takeover.takeover``
Status, Trace            how everything fares; what would become of a connection            ``kubeproxy.observability``

The upper half is the control plane: slow, rich, may wait for the kernel and for the API server. The lower half, from
Message to Worker, is the data plane: it knows no Kubernetes, no netfilter and no configuration file.
``docs/architecture.md`` tells why.
"""

from kubeproxy.model.version import __version__

__all__ = ["__version__"]
