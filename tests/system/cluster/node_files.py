"""What is configured on a node: kubelet, containerd, CNI."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

from tests.system.cluster.certificates import Authority
from tests.system.cluster.layout import DNS_SERVICE, DOMAIN, Place

CONTAINERD_SOCKET: Final = "/run/containerd/containerd.sock"
RESOLVER: Final = "/run/resolv.conf"
"""The name server of pods on the node's network."""


def kubelet(place: Place, pki: Authority) -> str:
    """KubeletConfiguration, as JSON."""
    config = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": pki.file("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": pki.file(f"{place.name}.crt"),
        "tlsPrivateKeyFile": pki.file(f"{place.name}.key"),
        "cgroupDriver": "cgroupfs",
        "failCgroupV1": False,
        "failSwapOn": False,
        # Nodes share the machine's disk and memory; nothing is evicted for what others use.
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "clusterDNS": [DNS_SERVICE],
        "clusterDomain": DOMAIN,
        "resolvConf": RESOLVER,
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        # A container without CAP_SYS_RESOURCE cannot lower it.
        "oomScoreAdj": 0,
        "syncFrequency": "10s",
    }
    return json.dumps(config, indent=1)


def containerd(pause: str, plugins: Path) -> str:
    """The configuration of containerd (version 2 of the format), as TOML. `pause` is the image of sandboxes."""
    runtime = 'plugins."io.containerd.grpc.v1.cri"'
    return f"""\
version = 2
[{runtime}]
  sandbox_image = {json.dumps(pause)}
  # A container without CAP_SYS_RESOURCE cannot lower it.
  restrict_oom_score_adj = true
  [{runtime}.cni]
    bin_dir = {json.dumps(str(plugins))}
    conf_dir = "/etc/cni/net.d"
  [{runtime}.containerd]
    snapshotter = "overlayfs"
    [{runtime}.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
"""


def cni(place: Place) -> str:
    """A bridge with host-local addresses, hairpin and host ports: what most clusters without a cloud have."""
    bridge: dict[str, Any] = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "hairpinMode": True,
        "ipMasq": False,
        "ipam": {"type": "host-local", "ranges": [[{"subnet": place.pods}]], "routes": [{"dst": "0.0.0.0/0"}]},
    }
    portmap = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "0.4.0", "name": "pods", "plugins": [bridge, portmap]}, indent=1)
