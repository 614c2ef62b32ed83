"""A kubelet for the laboratory: each pod of the API server is a process with an address of its own.

A pod that is deleted gets SIGTERM at once, which ends it at once: no preStop hook, no patience for open connections.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from http.client import HTTPException
from typing import Any, Final, Self

from kubeproxy.kubernetes import timestamps
from tests.support.lab import Network
from tests.system.e2e import backend
from tests.system.e2e.control_plane import RealCluster, Refused
from tests.system.e2e.stage import TARGET, Object, ask

NODE: Final = "node"
"""The name of the Node that all pods are bound to."""
PODS: Final = "/api/v1/namespaces/default/pods"
PAUSE_S: Final = 0.05
"""Between two looks at the pods."""


@dataclass(slots=True)
class _Running:
    name: str
    slot: int
    process: subprocess.Popen[Any]
    stated: tuple[bool, bool] = (False, False)
    """Whether its containers were reported as ready, and the pod."""


class Kubelet:
    """Runs the pods of the namespace ``default`` on the hosts of a network; a context manager.

    A pod's backend answers with the pod's name. While the API server does not answer, the pods go on, and what was not
    written is tried again.
    """

    def __init__(self, cluster: RealCluster, network: Network) -> None:
        self._cluster = cluster
        self._network = network
        self._free = list(range(len(network.pods)))
        """The hosts without a pod; that which has been free for longest is first, so addresses come back late."""
        self._running: dict[str, _Running] = {}
        """By UID of the pod."""
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.ended_at: dict[str, float] = {}
        """When a pod got SIGTERM, by the monotonic clock."""
        self.errors: list[str] = []

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *exc: object) -> None:
        self._stop.set()
        self._thread.join(30)
        for each in self._running.values():
            each.process.kill()
            each.process.wait()

    def _run(self) -> None:
        while not self._stop.wait(PAUSE_S):
            try:
                pods = self._cluster.ask("GET", PODS)["items"]
                for uid in self._running.keys() - {pod["metadata"]["uid"] for pod in pods}:
                    self._end(uid)
                for pod in pods:
                    self._tend(pod)
            except (OSError, HTTPException, Refused) as error:
                self.errors.append(repr(error))

    def _tend(self, pod: Object) -> None:
        metadata = pod["metadata"]
        uid, path = metadata["uid"], f"{PODS}/{metadata['name']}"
        try:
            if "deletionTimestamp" in metadata:
                self._end(uid)
                self._cluster.ask("DELETE", path, {"gracePeriodSeconds": 0, "preconditions": {"uid": uid}})
            elif uid not in self._running:
                if self._free:
                    self._start(pod, path)
            elif not all(self._running[uid].stated) and self._answers(self._running[uid]):
                self._report(path, self._running[uid], containers=True, ready=_gates_are_open(pod))
        except Refused as refused:
            if refused.status not in (404, 409):  # the pod has been deleted or replaced since it was listed
                raise

    def _start(self, pod: Object, path: str) -> None:
        name = pod["metadata"]["name"]
        if not pod["spec"].get("nodeName"):
            binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": NODE}}
            self._cluster.ask("POST", f"{path}/binding", binding)
        slot = self._free.pop(0)
        command = [sys.executable, "-S", "-E", backend.__file__, name, Network.pod_v4(slot), str(TARGET)]
        running = _Running(name, slot, self._network.pods[slot].popen(command))
        self._running[pod["metadata"]["uid"]] = running
        self._report(path, running, containers=False, ready=False)

    def _end(self, uid: str) -> None:
        if running := self._running.pop(uid, None):
            self.ended_at[running.name] = time.monotonic()
            running.process.terminate()
            running.process.wait(10)
            self._free.append(running.slot)

    def _answers(self, running: _Running) -> bool:
        try:
            return bool(ask(self._network.node, (Network.pod_v4(running.slot), TARGET), timeout_s=1.0))
        except OSError:
            return False

    def _report(self, path: str, running: _Running, *, containers: bool, ready: bool) -> None:
        if containers and running.stated == (containers, ready):
            return
        address, now = Network.pod_v4(running.slot), timestamps.seconds(time.time())
        conditions = [
            {"type": type, "status": str(status), "lastTransitionTime": now}
            for type, status in (("ContainersReady", containers), ("Ready", ready))
        ]
        status = {"phase": "Running", "podIP": address, "podIPs": [{"ip": address}], "conditions": conditions}
        self._cluster.ask(
            "PATCH", f"{path}/status", {"status": status}, content_type="application/strategic-merge-patch+json"
        )
        running.stated = containers, ready


def _gates_are_open(pod: Object) -> bool:
    is_true = {each["type"] for each in pod["status"].get("conditions", []) if each["status"] == "True"}
    return all(gate["conditionType"] in is_true for gate in pod["spec"].get("readinessGates", []))
