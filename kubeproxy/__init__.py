"""kubeproxy: a service proxy for Linux nodes, in user space and by the kernel.

The nouns, in the order in which data meets them:

Service, EndpointSlice   what the cluster or a manifest asks for                           ``kubeproxy.model``
Source                   an API server, or manifest files, from which these objects come    ``kubeproxy.sources``
Informer                 list-watch of an API server                                        ``kubeproxy.kubernetes``
Tracker                  what changed since the last round                                 ``kubeproxy.proxier``
Frontend                 the part of a service port that one listener serves
Plan                     the difference between wanted frontends and existing listeners (pure)
Proxier                  carries plans out, retries what failed, reserves proxy ports
RuleSet                  service address -> proxy port, or endpoints, as one value         ``kubeproxy.netfilter``
Netfilter                keeps the kernel equal to a RuleSet: nftables, iptables
Message                  all that the control plane sends to the data plane                ``kubeproxy.dataplane``
Reactor, Listener        an epoll loop; accepts redirected connections
Balancer                 session affinity, ejection, and the policy of the scheduler (pure)
Dial                     finds an endpoint that answers, and tries several if needed
Connection, Session      moves bytes (TCP) or datagrams (UDP) both ways
Worker                   a process that runs the data plane; it survives the control process
Rescue                   sends a first packet again if its endpoint has failed             ``kubeproxy.rescue``
Status, Metrics, Log     what an operator sees                                             ``kubeproxy.observability``
Lifecycle                start, ready, reload, drain, stop                                ``kubeproxy.daemon.lifecycle``
Takeover                 one instance replaces another without losing a connection         ``kubeproxy.daemon.takeover``
Configuration            file and flags                                                    ``kubeproxy.config``
Command                  run, check, status, create …                                      ``kubeproxy.cli``
Task, Restart            background work of every process                                  ``kubeproxy.runtime``
Controller               keeps Deployments and ReplicaSets; apart from the proxy           ``kubeproxy.controllers``

From Service to Netfilter is the control plane: rich, slow, may wait for the kernel and the API server. From Message to
Worker is the data plane: it knows no Kubernetes, no netfilter and no configuration file. ``docs/architecture.md`` says
why.
"""

from kubeproxy.model.version import __version__
from kubeproxy.runtime.compiled import prefer_compiled_modules

prefer_compiled_modules()

__all__ = ["__version__"]
