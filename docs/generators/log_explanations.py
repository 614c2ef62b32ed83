"""What the warnings and errors in docs/log-messages.md mean, and what an operator does about them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

EXPLANATIONS: Final[Mapping[str, tuple[str, str]]] = {
    "background task failed": (
        "A fault of kubeproxy; a traceback follows. Everything else continues.",
        "Report it with the traceback. Restart if something is missing.",
    ),
    "a health check node port is not served": (
        "The port that a load balancer asks for a Service's health is taken, or reserved.",
        "Free the port, or give the Service another `healthCheckNodePort`.",
    ),
    "a helper process that parses manifests was lost; what it had is parsed here": (
        "A parser process ended; its texts are parsed again.",
        "Nothing, unless it repeats.",
    ),
    "a watch broke": (
        "A watch delivered something that is no Kubernetes object (a warning), or was cut (information). It "
        "continues, or a list follows (`next`).",
        "Nothing, unless it repeats: then look what stands between this node and the API server.",
    ),
    "worker process has ended": (
        "A worker process ended; `reason` has its signal or exit status.",
        "[KubeproxyWorkerRestarts](operations.md#kubeproxyworkerrestarts)",
    ),
    "an endpoint does not answer, and is passed over": (
        "An endpoint failed twice in a row and gets no clients until a probe succeeds.",
        "[KubeproxyEndpointsEjected](operations.md#kubeproxyendpointsejected)",
    ),
    "another kubeproxy does not answer": (
        "A running instance does not speak with this new one.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "another kubeproxy's rules replaced ours": (
        "A younger instance has the rules; this one drains.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "API server lost; serving on with what is known": (
        "No request succeeds; what is known is served.",
        "[KubeproxyWatchStale](operations.md#kubeproxywatchstale)",
    ),
    "cannot accept connections": (
        "An HTTP server got no descriptor or memory for a connection.",
        "[KubeproxyDescriptorsLow](operations.md#kubeproxydescriptorslow)",
    ),
    "cannot delete UDP flows": (
        "At a stop, old UDP flows could not be deleted.",
        "`conntrack -D -p udp` for the Services' addresses, if clients get no answer.",
    ),
    "cannot preserve client addresses": (
        "The kernel or the privileges do not allow it; `reason` says which.",
        "What [netfilter.md](netfilter.md#needs) lists; or `--preserve-client-address=never`.",
    ),
    "cannot drop capabilities": (
        "The process keeps more capabilities than it needs.",
        "A seccomp or security module forbids it; allow `capset` and `prctl`.",
    ),
    "re-exec refused": (
        "SIGUSR2 came, and the program on disk does not start with this configuration.",
        "Repair what `reason` names, and send SIGUSR2 again.",
    ),
    "cannot learn which connections have ended": (
        "A worker does not answer, so the access log has its connections later.",
        "[KubeproxyWorkerLag](operations.md#kubeproxyworkerlag)",
    ),
    "cannot listen, goes on trying": (
        "Another process has the address of the health or metrics server.",
        "`ss -lntup`; stop that process (kube-proxy?), or change the setting in `setting`.",
    ),
    "cannot look at manifests now": (
        "A directory or file cannot be read now; the last state is served.",
        "Repair what `reason` names; it is retried.",
    ),
    "cannot mark dials; loops end later": (
        "Dials have no mark, so only the hop limit ends a loop.",
        "Linux 5.17, or CAP_NET_ADMIN; see [netfilter.md](netfilter.md#the-proxys-own-dials).",
    ),
    "cannot read redirects": (
        "The rules cannot be read back, so a younger instance is not recognized by them. It is tried again.",
        "Repair what `reason` names.",
    ),
    "cannot remove rules of predecessor": (
        "After a takeover with another packet filter the old rules are still there.",
        "`reason`; then `kubeproxy cleanup` of the old adapter's rules by hand.",
    ),
    "cannot start": (
        "Start failed for a reason outside of the configuration: the kernel, a port.",
        "Repair what `reason` names.",
    ),
    "configuration change needs restart": (
        "A reload changed fields that are read only at start.",
        "Restart, or re-exec by SIGUSR2.",
    ),
    "clients have to wait for want of descriptors": (
        "The limit on open files is reached; new clients wait.",
        "[KubeproxyAcceptPaused](operations.md#kubeproxyacceptpaused)",
    ),
    "clients have to wait for want of memory": (
        "There is no memory for more clients; new ones wait.",
        "[KubeproxyMemoryShortage](operations.md#kubeproxymemoryshortage)",
    ),
    "commit refused, reading the table again": (
        "Another program changed a legacy table at the same time.",
        "Nothing, unless it repeats.",
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
    "connections come through too many proxies": (
        "An endpoint leads back to a proxy; the hop limit ended the connections.",
        "Correct the EndpointSlice of the Service; [KubeproxyDialFailures](operations.md#kubeproxydialfailures).",
    ),
    "connections refused: too many per second": (
        "An address connects to the health or metrics server too often; `client` has it.",
        "Find that client; the health of the node is still answered to loopback.",
    ),
    "credentials could not be renewed": (
        "Token, certificate or exec plugin failed; the old credentials are used.",
        "Repair what `error` names.",
    ),
    "endpoints cannot be dialed: all ports towards them are in use": (
        "No ephemeral port is free towards an endpoint.",
        "[KubeproxyEphemeralPortsExhausted](operations.md#kubeproxyephemeralportsexhausted)",
    ),
    "events are not taken by the API server; of this reason no more is said": (
        "The API server refuses Events of this kind.",
        "RBAC: `deploy/base/cluster-role.yaml`.",
    ),
    "fault in a manifest": (
        "A manifest has this fault; its last good version is served.",
        "[KubeproxyManifestsFaulty](operations.md#kubeproxymanifestsfaulty)",
    ),
    "manifests are parsed more slowly: a helper process cannot be started": (
        "No parser process could be started.",
        "The limit on processes.",
    ),
    "manifests are polled, not watched": (
        "The kernel cannot watch a directory; it is read at intervals.",
        "`fs.inotify.max_user_watches`, or nothing.",
    ),
    "more endpoints do not answer": (
        "More endpoints were ejected than are logged at once.",
        "`kubeproxy status` lists all.",
    ),
    "more faults in manifests": (
        "More faults than are logged at once.",
        "`kubeproxy check --manifests DIR` lists all.",
    ),
    "no API server yet": (
        "At start: no request has succeeded yet.",
        "The address and credentials of the API server; see [install.md](install.md#on-a-cluster).",
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
    "parts of an object cannot be served": (
        "An object of the API server has fields that cannot be served; `faults` lists them.",
        "Correct the object; the rest of it is served.",
    ),
    "rules changed by another process, restoring": (
        "Another program changed our rules; they are restored.",
        "[Rules change by themselves](troubleshooting.md#rules-change-by-themselves)",
    ),
    "cannot remove earlier run's redirects": (
        "At start the pause could not be set.",
        "`reason` is the kernel's; clients may be refused until serving begins.",
    ),
    "service has a problem": (
        "A Service is not served, or not completely.",
        "[KubeproxyServicesDegraded](operations.md#kubeproxyservicesdegraded)",
    ),
    "session affinity not restored": (
        "The affinity of the predecessor could not be fetched.",
        "Nothing; clients may change their endpoint once.",
    ),
    "takeover refused: no CAP_NET_ADMIN": (
        "A process asked to take over and did not prove CAP_NET_ADMIN.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "new instance: other takeover protocol, stopping": (
        "A new instance with another version of the takeover protocol waits; this one drains and stops.",
        "Nothing: clients wait as they do for a stop and a start.",
    ),
    "predecessor: other takeover protocol, stops first": (
        "The running instance has another version of the takeover protocol (`its`, `ours`); it drains and stops.",
        "Nothing: clients wait as they do for a stop and a start.",
    ),
    "predecessor: other protocol, cannot stop it": (
        "The running instance has another version of the takeover protocol and did not stop.",
        "End it (`pid`); it yields by itself when it sees the new rules.",
    ),
    "predecessor does not stop in time": (
        "The running instance was asked to stop, and lives on long after its grace period.",
        "End it.",
    ),
    "orphaned worker: other takeover protocol": (
        "A worker of an earlier run with another protocol version; it retires as usual, without its session affinity.",
        "Nothing.",
    ),
    "takeover refused: rules lead here": (
        "A new instance claimed that its rules are in force; the kernel shows otherwise.",
        "[A refused takeover](operations.md#a-refused-takeover)",
    ),
    "the access log cannot be written": (
        "The file of the access log; `lines_lost` were not written.",
        "Free the disk, or repair the path; later lines are tried again.",
    ),
    "the access log has gaps: too many connections ended at once": (
        "More connections ended at once than the access log takes.",
        "More workers, or no access log.",
    ),
    "the API server has no such node; /healthz says 503, and Services are served all the same": (
        "There is no Node object of this name.",
        "`--hostname-override`; or watch `/livez` outside of a cluster.",
    ),
    "the data plane does not serve as it should": (
        "A worker dies again and again, or does not answer.",
        "[KubeproxyDataPlaneDegraded](operations.md#kubeproxydataplanedegraded)",
    ),
    "the data plane gives no answer; its metrics are missing": (
        "Workers did not answer a scrape in time.",
        "[KubeproxyWorkerLag](operations.md#kubeproxyworkerlag)",
    ),
    "cannot change rules at exit": (
        "At a stop the rules could not be replaced by a pause or removed.",
        "`kubeproxy cleanup`, if no other instance starts.",
    ),
    "predecessor does not answer": (
        "The predecessor stopped answering during a takeover; it goes on without.",
        "Look whether that process (`pid`) hangs.",
    ),
    "predecessor has ended": (
        "The predecessor ended during a takeover.",
        "Nothing.",
    ),
    "the reflector stumbled": (
        "A fault of kubeproxy while reading from the API server; it lists anew.",
        "Report it with the traceback.",
    ),
    "cannot notify service manager": (
        "systemd's socket does not take notifications.",
        "`reason`; systemd may restart the service by its watchdog.",
    ),
    "session affinity not sent": (
        "The affinity could not be sent to the new instance.",
        "Nothing; clients may change their endpoint once.",
    ),
    "new instance left before takeover": (
        "A new instance ended before its rules were in force.",
        "Look at its log.",
    ),
    "this node's object may not be read; its zone, addresses and taints stay unknown": (
        "RBAC forbids reading the Node.",
        "RBAC: `deploy/base/cluster-role.yaml`.",
    ),
    "earlier instances have ended": (
        "Predecessor and orphaned workers ended before all sources were complete.",
        "Nothing; Services of the missing source follow.",
    ),
    "transaction refused, reading the kernel's rules": (
        "nft refused a change; the table is read and the change repeated.",
        "Nothing, unless it repeats.",
    ),
    "update failed, retrying": (
        "`part` (data plane, netfilter, conntrack) refuses changes; `reason` is the kernel's or the worker's.",
        "[KubeproxySyncFailing](operations.md#kubeproxysyncfailing)",
    ),
    "WATCHDOG_USEC or WATCHDOG_PID ignored": (
        "An environment with an invalid watchdog.",
        "Correct `WatchdogSec=`.",
    ),
}
"""Meaning and remedy of a message, by its text as it stands in the source."""
