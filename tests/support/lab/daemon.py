"""The real daemon on one of the laboratory's hosts."""

from __future__ import annotations

import contextlib
import http.client
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from tests.support.lab.host import Host
from tests.support.lab.web import Answer, get

KUBEPROXY = str(Path(sys.executable).with_name("kubeproxy"))
HEALTHZ = ("127.0.0.1", 10256)
METRICS = ("127.0.0.1", 10249)


def environment(directory: Path) -> dict[str, str]:
    """Environment variables of our programs in a laboratory: a lock file for iptables that an ordinary user may open,
    too."""
    return {**os.environ, "XTABLES_LOCKFILE": str(directory / "xtables.lock")}


class Daemon:
    """`kubeproxy run` on `host`, serving the manifests in a directory, if any. Ready when made; a context manager.

    Its log goes to `log_path`. AssertionError, with that log, if it ends or is not ready in `ready_within_s`; with None
    nobody waits for that.
    """

    def __init__(
        self,
        host: Host,
        *,
        manifests: Path | None,
        netfilter: str = "auto",
        options: Sequence[str] = (),
        command: Sequence[str] = (KUBEPROXY,),
        healthz: tuple[str, int] = HEALTHZ,
        metrics: tuple[str, int] = METRICS,
        ready_within_s: float | None = 60.0,
    ) -> None:
        self.host = host
        self._healthz = healthz
        self._directory = Path(tempfile.mkdtemp(prefix="kubeproxy-lab-"))
        self.log_path = self._directory / "log"
        arguments = {
            **({"--manifests": str(manifests)} if manifests else {}),
            "--netfilter": netfilter,
            # What an earlier daemon has left is for the tests that ask for it.
            **({} if "--state-dir" in " ".join(options) else {"--state-dir": str(self._directory / "state")}),
            "--healthz-bind-address": f"{healthz[0]}:{healthz[1]}",
            "--metrics-bind-address": f"{metrics[0]}:{metrics[1]}",
        }
        with self.log_path.open("wb") as log:
            self.process: subprocess.Popen[Any] = host.popen(
                [*command, "run", *(word for pair in arguments.items() for word in pair), *options],
                stdout=log,
                stderr=log,
                env=environment(self._directory),
                # Ctrl-C reaches the test run only; the daemon gets its SIGTERM from `terminate`.
                process_group=0,
            )
        try:
            if ready_within_s is not None:
                self.wait_ready(ready_within_s)
        except BaseException:
            self.close()
            raise

    def wait_ready(self, within_s: float) -> None:
        """Wait until /readyz answers 200."""
        deadline = time.monotonic() + within_s
        seen = "no answer"
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise AssertionError(f"kubeproxy ended with status {self.process.returncode}:\n{self.log()}")
            try:
                answer = self.get("/readyz", address=self._healthz)
            except (OSError, http.client.HTTPException) as error:
                seen = repr(error)
            else:
                if answer.status == 200:
                    return
                seen = f"{answer.status} {answer.body}"
            time.sleep(0.02)
        raise AssertionError(f"kubeproxy was not ready within {within_s} s (/readyz: {seen}):\n{self.log()}")

    def get(self, path: str, *, address: tuple[str, int] = HEALTHZ) -> Answer:
        """One GET of the daemon's health server, from its own host. With `address`, of its metrics server."""
        return get(self.host, address, path)

    def log(self) -> str:
        """The log so far."""
        return self.log_path.read_text(errors="replace")

    def wait(self, within_s: float = 60.0) -> int:
        """Wait for the exit status. AssertionError, with the log, if the daemon does not end in time."""
        try:
            return self.process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"kubeproxy still runs {within_s} s later:\n{self.log()}") from None

    def terminate(self, within_s: float = 60.0) -> int:
        """Send SIGTERM and return the exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.wait(within_s)

    def cleanup(self, *, check: bool = True) -> subprocess.CompletedProcess[str]:
        """`kubeproxy cleanup` on the same host. With `check`, a refusal is an AssertionError."""
        return self.host.run([KUBEPROXY, "cleanup"], env=environment(self._directory), check=check)

    def close(self) -> None:
        """Kill the daemon and the workers that have outlived it; remove its log."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        shutil.rmtree(self._directory, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()


def write_manifest(path: Path, text: str) -> None:
    """Write a manifest atomically, so that a watcher never reads half of it."""
    hidden = path.with_name(f".{path.name}.new")
    hidden.write_text(text)
    hidden.rename(path)


def service_manifest(
    name: str,
    *,
    cluster_ip: str,
    ports: Mapping[str, tuple[int, int]],
    endpoints: Sequence[str],
    namespace: str = "default",
) -> str:
    """A Service and its EndpointSlice (IPv4) as YAML: `ports` is name -> (service port, target port)."""
    service_ports = "".join(
        f"  - {{name: {port}, port: {number}, targetPort: {target}}}\n" for port, (number, target) in ports.items()
    )
    slice_ports = "".join(f"- {{name: {port}, port: {target}}}\n" for port, (_, target) in ports.items())
    slice_endpoints = "".join(f"- {{addresses: [{address}], conditions: {{ready: true}}}}\n" for address in endpoints)
    return f"""\
apiVersion: v1
kind: Service
metadata:
  name: {name}
  namespace: {namespace}
spec:
  clusterIP: {cluster_ip}
  ports:
{service_ports}\
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata:
  name: {name}-1
  namespace: {namespace}
  labels:
    kubernetes.io/service-name: {name}
addressType: IPv4
ports:
{slice_ports}\
endpoints:{" []" if not endpoints else ""}
{slice_endpoints}\
"""
