"""The real kube-proxy on one of the laboratory's hosts, for comparison.

``tests/tools/kubernetes.sh`` builds version 1.20.2, which proxies by iptables rules. Its later mode for nftables
chooses endpoints in the same way: at random among those that are ready, by address translation.
"""

from __future__ import annotations

import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any, Self

from tests.support.lab.host import Host

READY_S = 30.0


class KubeProxy:
    """``kube-proxy --proxy-mode=iptables`` on `host`, a context manager, entered when `address` has a rule.

    It changes no setting of connection tracking. AssertionError, with its log, if it makes no rules within `READY_S`.
    """

    def __init__(
        self, host: Host, *, program: Path, kubeconfig: Path, node_address: str, address: str, node: str = "node-1"
    ) -> None:
        self._host = host
        self._address = address
        self._command = [
            str(program),
            f"--kubeconfig={kubeconfig}",
            "--proxy-mode=iptables",
            f"--hostname-override={node}",
            f"--bind-address={node_address}",  # its family is that of the rules
            "--healthz-bind-address=127.0.0.1:10256",
            "--metrics-bind-address=127.0.0.1:10249",
            "--feature-gates=EndpointSliceProxying=false",
            "--conntrack-max-per-core=0",
            "--conntrack-tcp-timeout-established=0",
            "--conntrack-tcp-timeout-close-wait=0",
        ]
        self._save = "ip6tables-save" if ":" in address else "iptables-save"
        self._directory = tempfile.TemporaryDirectory(prefix="kube-proxy-")
        self._process: subprocess.Popen[Any] | None = None

    def __enter__(self) -> Self:
        path = Path(self._directory.name, "log")
        with path.open("wb") as log:
            self._process = self._host.popen(self._command, stdout=log, stderr=log)
        until = time.monotonic() + READY_S
        while f"-d {self._address}/" not in self._host.run([self._save, "-t", "nat"], check=False).stdout:
            if self._process.poll() is not None or time.monotonic() > until:
                self.__exit__()
                raise AssertionError(f"kube-proxy has made no rule for {self._address}: {path.read_text()[-3000:]}")
            time.sleep(0.1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            # Its rules would go on sending clients to endpoints.
            self._host.run([self._command[0], "--cleanup"], check=False)
            self._process = None
        self._directory.cleanup()
