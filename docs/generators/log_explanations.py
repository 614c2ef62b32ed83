"""What the warnings and errors in docs/log-messages.md mean, and what an operator does about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXPLANATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "access log skipped connections": (
        "More connections ended at once than the access log takes.",
        "More workers, or no access log.",
    ),
    "order of an operator": (
        "A person on this node took an endpoint out, gave it back, had the sources asked again, or waits for the end of"
        " a pod's connections; `caller` says who.",
        "Nothing. [By hand](operations.md#by-hand)",
    ),
    "preStop hooks not answered": (
        "No port on loopback could be opened for preStop hooks: kubelet's requests go to the pods themselves.",
        "Free descriptors or ports on loopback, then restart kubeproxy.",
    ),
    "connections to pods not read": (
        "The kernel did not give its conntrack entries: preStop hooks wait until their time is over.",
        "The `reason`; CAP_NET_ADMIN is needed.",
    ),
    "user of a preStop hook not known": (
        "The kernel did not say whose process asks for /drain: the request went on to the pod.",
        "The `reason`; the kernel's modules inet_diag and tcp_diag.",
    ),
    "timeout of a preStop hook not understood": (
        "A pod's hook has a time that is none; it waits for 25 s.",
        "Correct `path` in its preStop hook, like `/drain?timeout=25s` ([rollouts.md](rollouts.md)).",
    ),
    "another manager keeps the same objects": (
        "kube-controller-manager has made a pod or ReplicaSet of an owner that this controller manager keeps, too.",
        "Take the three controllers from one of the two: [controllers.md](controllers.md).",
    ),
    "kube-controller-manager leads, too": (
        "Its Lease is renewed. It may lead for its other controllers only.",
        "Look whether it runs with `-deployment-controller` and the others: [controllers.md](controllers.md).",
    ),
    "another kubeproxy does not answer": (
        "A running instance does not speak with this new one.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "another kubeproxy's rules replaced ours": (
        "A younger instance has the rules; this one drains.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "API server has no such node": (
        "There is no Node object of this name.",
        "`--hostname-override`; or watch `/livez` outside of a cluster.",
    ),
    "API server lost, serving last state": (
        "No request succeeds; what is known is served.",
        "[KubeproxyWatchStale](operations.md#kubeproxywatchstale)",
    ),
    "API server refuses events": (
        "The API server refuses Events of this kind.",
        "RBAC: `deploy/base/cluster-role.yaml`.",
    ),
    "background task failed": (
        "A fault of kubeproxy in an HTTP server; a traceback follows.",
        "Report it with the traceback.",
    ),
    "cannot accept connections": (
        "An HTTP server got no descriptor or memory for a connection.",
        "[KubeproxyDescriptorsLow](operations.md#kubeproxydescriptorslow)",
    ),
    "cannot change rules at exit": (
        "At a stop the rules could not be replaced by a pause or removed.",
        "`kubeproxy cleanup`, if no other instance starts.",
    ),
    "cannot delete flows of ended connections": (
        "A client that uses the port of an ended connection again may be refused, for two minutes at most.",
        "[KubeproxyConntrackFailures](operations.md#kubeproxyconntrackfailures)",
    ),
    "cannot delete UDP flows": (
        "At a stop, old UDP flows could not be deleted.",
        "`conntrack -D -p udp` for the Services' addresses, if clients get no answer.",
    ),
    "cannot drop capabilities": (
        "The process keeps more capabilities than it needs.",
        "A seccomp or security module forbids it; allow `capset` and `prctl`.",
    ),
    "cannot size connection tracking": (
        "Settings of connection tracking stay as `reason` says: they are read-only in a container, and the size of the"
        " table outside of the first network namespace.",
        "[Connection tracking](install.md#connection-tracking), or `sysctl` on the host.",
    ),
    "ends of connections were lost": (
        "More connections of the kernel path ended at once than the kernel keeps for the access log.",
        "[Access log](data-paths.md#access-log): no access log, or fewer connections.",
    ),
    "kernel path's connections not logged": (
        "The kernel refuses to report ends of connections; the access log has none of the kernel path.",
        "CAP_NET_ADMIN, and the module nf_conntrack_netlink.",
    ),
    "kernel path's flows not counted": (
        "Connection tracking could not be read; open connections and bytes of the kernel path are old.",
        "CAP_NET_ADMIN, and the module nf_conntrack_netlink.",
    ),
    "cannot fetch ended connections": (
        "A worker does not answer, so the access log has its connections later.",
        "[KubeproxyWorkerLag](operations.md#kubeproxyworkerlag)",
    ),
    "cannot listen, trying again": (
        "Another process has the address of the health or metrics server.",
        "`ss -lntup`; stop that process (kube-proxy?), or change the setting in `setting`.",
    ),
    "cannot mark dials; loops end later": (
        "Dials have no mark, so only the hop limit ends a loop.",
        "Linux 5.17, or CAP_NET_ADMIN; see [netfilter.md](netfilter.md#the-proxys-own-dials).",
    ),
    "cannot notify service manager": (
        "systemd's socket does not take notifications.",
        "`reason`; systemd may restart the service by its watchdog.",
    ),
    "cannot preserve client addresses": (
        "The kernel or the privileges do not allow it; `reason` says which.",
        "What [netfilter.md](netfilter.md#needs) lists; or `--preserve-client-address=never`.",
    ),
    "cannot read redirects": (
        "The rules cannot be read back, so a younger instance is not recognized by them. It is tried again.",
        "Repair what `reason` names.",
    ),
    "cannot remove earlier run's redirects": (
        "At start the pause could not be set.",
        "`reason` is the kernel's; clients may be refused until serving begins.",
    ),
    "cannot remove rules of predecessor": (
        "After a takeover with another packet filter the old rules are still there.",
        "`reason`; then `kubeproxy cleanup` of the old adapter's rules by hand.",
    ),
    "cannot start": (
        "Start failed: the kernel, a port, a file that is missing, or a running instance that serves more.",
        "Repair what `reason` names; for a running instance see [upgrade.md](upgrade.md#a-second-instance).",
    ),
    "cannot write the access log": (
        "The file of the access log; `lines_lost` were not written.",
        "Free the disk, or repair the path; later lines are tried again.",
    ),
    "commit refused, reading the table again": (
        "Another program changed a legacy table at the same time.",
        "Nothing, unless it repeats.",
    ),
    "configuration change needs restart": (
        "A reload changed fields that are read only at start.",
        "Restart, or re-exec by SIGUSR2.",
    ),
    "configuration rejected, old one stays": (
        "SIGHUP came, and the file has this fault. One line for each fault.",
        "`kubeproxy check --config FILE`, then reload again.",
    ),
    "configuration: …": (
        "A field or flag without effect, unknown, or duplicate.",
        "Correct the file; `kubeproxy check` lists all.",
    ),
    "connections are cut off": (
        "The grace period is over; `open` connections were cut.",
        "A longer `shutdownGrace`, if clients suffer.",
    ),
    "connections loop through proxies": (
        "An endpoint leads back to a proxy; the hop limit ended the connections.",
        "Correct the EndpointSlice of the Service; [KubeproxyDialFailures](operations.md#kubeproxydialfailures).",
    ),
    "connections refused: too many per second": (
        "An address connects to the health or metrics server too often; `client` has it.",
        "Find that client; the health of the node is still answered to loopback.",
    ),
    "credentials not renewed": (
        "Token, certificate or exec plugin failed; the old credentials are used.",
        "Repair what `error` names.",
    ),
    "connections not counted": (
        "The kernel does not list its flows, so drain reports keep the last number of open connections.",
        "The reason has the kernel's error; rollouts go on at their time-outs.",
    ),
    "data plane degraded": (
        "A worker dies again and again, or does not answer.",
        "[KubeproxyDataPlaneDegraded](operations.md#kubeproxydataplanedegraded)",
    ),
    "data plane metrics missing": (
        "Workers did not answer a scrape in time.",
        "[KubeproxyWorkerLag](operations.md#kubeproxyworkerlag)",
    ),
    "drain report not written, retrying": (
        "The API server did not take this node's drain report; rollouts wait for it until their time-outs.",
        "The rights and the policy of `deploy/components/drain-reports`; or the API server is away.",
    ),
    "earlier instances have ended": (
        "Predecessor and orphaned workers ended before all sources were complete.",
        "Nothing; Services of the missing source follow.",
    ),
    "endpoint ejected": (
        "An endpoint failed twice in a row and gets no clients until a probe succeeds.",
        "[KubeproxyEndpointsEjected](operations.md#kubeproxyendpointsejected)",
    ),
    "health check node port not served": (
        "The port that a load balancer asks for a Service's health is taken, or reserved.",
        "Free the port, or give the Service another `healthCheckNodePort`.",
    ),
    "informer handler failed": (
        "A fault of a controller's handler; a traceback follows. Other handlers got the change.",
        "Report it with the traceback.",
    ),
    "kernel path not possible": (
        "`kubeproxy.dataPath` asks for the kernel path, and the packet filter refuses its rules; `reason` says why.",
        "Take `--netfilter nftables` and an nft that [data-paths.md](data-paths.md) names; or `--data-path userspace`.",
    ),
    "leadership lost": (
        "The controller manager could not renew its Lease in time, and stops its controllers.",
        "See the messages before it; another instance leads, or this one does again.",
    ),
    "lease renewal got no answer": (
        "The API server did not answer a renewal of the Lease in time; it is tried again until the deadline.",
        "The API server, and the way to it.",
    ),
    "lease request failed": (
        "The API server refused a request for the Lease; it is tried again.",
        "`error`; RBAC for `leases` of `coordination.k8s.io`.",
    ),
    "manifest fault": (
        "A manifest has this fault; its last good version is served.",
        "[KubeproxyManifestsFaulty](operations.md#kubeproxymanifestsfaulty)",
    ),
    "manifest warning": (
        "A manifest has an unknown field, which has no effect; the object is served.",
        "[KubeproxyManifestsWarnings](operations.md#kubeproxymanifestswarnings)",
    ),
    "manifests cannot be checked now": (
        "A directory or file cannot be read now; the last state is served.",
        "Repair what `reason` names; it is retried.",
    ),
    "manifests polled, not watched": (
        "The kernel cannot watch a directory; it is read at intervals.",
        "`fs.inotify.max_user_watches`, or nothing.",
    ),
    "more endpoints ejected": (
        "More endpoints were ejected than are logged at once.",
        "`kubeproxy status` lists all.",
    ),
    "many processes have names of kubeproxy": (
        "Processes of this user, most of them no kubeproxy, have names of control processes; no more are named.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "more manifest faults": (
        "More faults than are logged at once.",
        "`kubeproxy check --manifests DIR` lists all.",
    ),
    "new instance left before takeover": (
        "A new instance ended before its rules were in force.",
        "Look at its log.",
    ),
    "new instance: other takeover protocol, stopping": (
        "A new instance with another version of the takeover protocol came. This one ends for it, and its workers serve"
        " on until the new one relieves them.",
        "[Versions side by side](upgrade.md#versions-side-by-side)",
    ),
    "API server refuses, nothing listed yet": (
        "At start: the server answers, and does not let this user list `resource`; nothing of it is served.",
        "`seen` names user, verb and resource; [symptoms.md](symptoms.md) has 401 and 403.",
    ),
    "no API server yet": (
        "At start: no request has succeeded yet.",
        "The address and credentials of the API server; see [install.md](install.md#on-a-cluster).",
    ),
    "no descriptors for new clients": (
        "The limit on open files is reached; new clients wait.",
        "[KubeproxyAcceptPaused](operations.md#kubeproxyacceptpaused)",
    ),
    "no ephemeral port for a dial": (
        "No ephemeral port is free towards an endpoint.",
        "[KubeproxyEphemeralPortsExhausted](operations.md#kubeproxyephemeralportsexhausted)",
    ),
    "no nftables, so no kernel path": (
        "nftables does not work here, as the line before says; the legacy tables are used.",
        "Install the package nftables, or load nf_tables. `--netfilter=iptables` says that it is meant.",
    ),
    "no memory for new clients": (
        "There is no memory for more clients; new ones wait.",
        "[KubeproxyMemoryShortage](operations.md#kubeproxymemoryshortage)",
    ),
    "not a kubeproxy: no CAP_NET_ADMIN": (
        "A process with a name of a control process did not prove CAP_NET_ADMIN; it is ignored.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "NOTIFY_SOCKET ignored: unknown address": (
        "An environment without systemd's notification.",
        "Remove the variable, or correct it.",
    ),
    "objects left out; too many to keep": (
        "The objects of one kind exceed the memory bound; the largest namespace loses some.",
        "Delete objects of that namespace, or limit them by a ResourceQuota; see "
        "[reliability.md](reliability.md#the-api-server-goes-away).",
    ),
    "previous control process has crashed": (
        "In a container: the control process before this one has ended by itself, as `how` says; its workers keep "
        "serving.",
        "[A process of kubeproxy ends](operations.md#a-process-of-kubeproxy-ends)",
    ),
    "another instance took over and has ended, serving again": (
        "In a container: a newer pod had taken the node over, and no process of it has been there for 5 s. This"
        " instance serves until that one is back.",
        "The log of the newer pod says why it ended: `kubectl logs --previous`.",
    ),
    "connections have not all moved": (
        "The new instance did not take all connections in time. This one serves the rest for at most `shutdownGrace`.",
        "[Connections move](takeover.md#connections-move)",
    ),
    "orphaned worker: connections stay with it": (
        "A worker of an earlier run has no version of what moves with a connection in common with this process (`its`),"
        " or cannot show that a kubeproxy with CAP_NET_ADMIN has started it, or no descriptor is left (`reason`). It"
        " serves its connections for at most `shutdownGrace`.",
        "[Connections move](takeover.md#connections-move)",
    ),
    "orphaned worker: other takeover protocol": (
        "A worker of an earlier run has another version of the takeover protocol; its session affinity is not fetched.",
        "[Versions side by side](upgrade.md#versions-side-by-side)",
    ),
    "part failed": (
        "A part stopped for a known reason and is started again.",
        "Repair what `reason` names.",
    ),
    "part failed by internal error": (
        "A fault of kubeproxy; a traceback follows. The part is started again.",
        "Report it with the traceback.",
    ),
    "part lacks memory or threads": (
        "A part got no memory or thread and is started again.",
        "Raise the limit on memory or processes (`TasksMax=`, pids).",
    ),
    "parts of object not served": (
        "An object of the API server has fields that cannot be served; `faults` lists them.",
        "Correct the object; the rest of it is served.",
    ),
    "predecessor does not answer": (
        "The predecessor stopped answering during a takeover; it goes on without.",
        "Look whether that process (`pid`) hangs.",
    ),
    "predecessor does not stop in time": (
        "The running instance accepted the request to stop and is still there after its grace period.",
        "End it.",
    ),
    "predecessor has ended": (
        "The predecessor ended during a takeover.",
        "Nothing.",
    ),
    "predecessor: other protocol, cannot stop it": (
        "The running instance has another version of the takeover protocol and did not accept the request to stop.",
        "End it (`pid`).",
    ),
    "predecessor: other takeover protocol, stops first": (
        "The running instance has another version of the takeover protocol; it was asked to stop, and this "
        "one waits for it.",
        "[Versions side by side](upgrade.md#versions-side-by-side)",
    ),
    "re-exec refused": (
        "SIGUSR2 came, and the program on disk does not start with this configuration.",
        "Repair what `reason` names, and send SIGUSR2 again.",
    ),
    "reading this node is forbidden": (
        "RBAC forbids reading the Node.",
        "RBAC: `deploy/base/cluster-role.yaml`.",
    ),
    "reflector failed, listing again": (
        "A fault of kubeproxy while reading from the API server; it lists again.",
        "Report it with the traceback.",
    ),
    "rules changed by another process, restoring": (
        "Another program changed our rules; they are restored.",
        "[Rules change by themselves](troubleshooting.md#rules-change-by-themselves)",
    ),
    "selector is invalid": (
        "The selector of an object cannot be evaluated; its controller leaves the object alone.",
        "Correct the object's `spec.selector`.",
    ),
    "service has a problem": (
        "A Service is not served, or not completely.",
        "[KubeproxyServicesDegraded](operations.md#kubeproxyservicesdegraded)",
    ),
    "session affinity not restored": (
        "The affinity of the predecessor could not be fetched.",
        "Nothing; clients may change their endpoint once.",
    ),
    "session affinity not sent": (
        "The affinity could not be sent to the new instance.",
        "Nothing; clients may change their endpoint once.",
    ),
    "sync failed": (
        "A fault of a controller while it handled an object; a traceback follows. It is tried again.",
        "Report it with the traceback.",
    ),
    "sync given up": (
        "An object failed too often; it is handled again at its next change.",
        "`error`; then change the object, or restart the controller manager.",
    ),
    "takeover refused: no CAP_NET_ADMIN": (
        "A process asked to take over and did not prove CAP_NET_ADMIN.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "takeover refused: rules lead here": (
        "A new instance claimed that its rules are in force; the kernel shows otherwise.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "TLS files cannot be used": (
        "The certificate, key or client CA of the controller manager's secure port was replaced by something that "
        "cannot be read; new connections get the earlier one.",
        "Correct the files that `error` names; they are read again within ten seconds.",
    ),
    "transaction refused, reading the kernel's rules": (
        "nft refused a change; the table is read and the change repeated.",
        "Nothing, unless it repeats.",
    ),
    "failed connections are not rescued": (
        "The kernel does not take the rescue rules; clients of the kernel path meet dead endpoints as with kube-proxy.",
        "`reason` has the kernel's answer; `kubeproxy.dataPath: userspace` or `auto` hides dead endpoints.",
    ),
    "kernel path not counted": (
        "The counters of connections on the kernel path could not be read; status and metrics show the last ones. If"
        " this was so at the start, connections are counted from the next reading on.",
        "`reason` has the kernel's answer.",
    ),
    "rescue process has ended": (
        "The process that sends first packets again ended; `reason` has its signal or exit status.",
        "Nothing, unless it repeats: meanwhile clients of the kernel path meet dead endpoints as with kube-proxy.",
    ),
    "first packets cannot enter again": (
        "The kernel has no veth, clsact, cls_bpf or act_mirred, or refuses them. Clients on other hosts and in pods"
        " wait for their own retransmission, a second, when an endpoint fails them.",
        "`modprobe -a veth sch_ingress cls_bpf act_mirred`, or a kernel that has them.",
    ),
    "rescue process unconfined": (
        "The kernel does not filter the system calls of the rescue process; it has no capability anyway.",
        "A kernel with CONFIG_SECCOMP_FILTER, on x86-64 or arm64. With Landlock it has no files anyway.",
    ),
    "cannot renew rescue rules": (
        "The kernel does not take the element that keeps the rescue rules working; they are inert until it does.",
        "Look whether another program removes our table.",
    ),
    "cannot free failed flows": (
        "Unanswered flows to a failed endpoint could not be deleted; clients repeat their SYN after a second.",
        "The module nf_conntrack_netlink, and CAP_NET_ADMIN.",
    ),
    "update failed, retrying": (
        "`part` (data plane, netfilter, conntrack) refuses changes; `reason` is the kernel's or the worker's.",
        "[KubeproxySyncFailing](operations.md#kubeproxysyncfailing)",
    ),
    "watch broke": (
        "A watch delivered something that is no Kubernetes object (a warning), or was cut (information). It "
        "continues, or a list follows (`next`).",
        "Nothing, unless it repeats: then look what stands between this node and the API server.",
    ),
    "WATCHDOG_USEC or WATCHDOG_PID ignored": (
        "An environment with an invalid watchdog.",
        "Correct `WatchdogSec=`.",
    ),
    "worker process has ended": (
        "A worker process ended; `reason` has its signal or exit status.",
        "[KubeproxyWorkerRestarts](operations.md#kubeproxyworkerrestarts)",
    ),
}
"""Meaning and remedy of a message, by its text as it stands in the source."""
