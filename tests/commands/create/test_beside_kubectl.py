"""The same input through kubectl and through us, each against a real API server of its own: equal objects, equal
standard output, equal exit status, and errors that say at least as much.

Skipped unless KUBERNETES_BINARIES names a directory with a control plane (docs/reliability.md) and KUBECTL a kubectl.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.commands.create.inputs import CASES, Case
from tests.support.lab import Host
from tests.system.e2e.control_plane import ADDRESS, BINARIES, RealCluster, binaries

KUBECTL = "KUBECTL"
pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(
        binaries() is None or KUBECTL not in os.environ,
        reason=f"{BINARIES} and {KUBECTL} are not set: nothing to compare with",
    ),
]
IGNORED = ("uid", "resourceVersion", "creationTimestamp", "managedFields", "selfLink")


@dataclass(slots=True)
class Program:
    """One of the two, with its server."""

    cluster: RealCluster
    command: list[str]
    config: Path
    seen: dict[str, Any]

    def run(self, case: Case, directory: Path) -> tuple[int, str, str]:
        """Exit status, standard output and error of a case."""
        names = case.arguments or (".",) if len(case.files) != 1 or case.arguments else tuple(case.files)
        files = [part for name in names for part in ("-f", name)]
        command = [*self.command, f"--kubeconfig={self.config}", *files, *case.args]
        done = self.cluster.host.run(
            ["sh", "-c", f'cd "{directory}" && exec "$@"', "sh", *command],
            input=case.stdin,
            check=False,
            env=os.environ | {"HOME": str(self.config.parent)},
        )
        return done.returncode, done.stdout, done.stderr

    def created(self) -> dict[str, Any]:
        """The objects that were not there at the time before."""
        now = dict(self._objects())
        new = {path: item for path, item in now.items() if path not in self.seen}
        self.seen = now
        return new

    def _objects(self) -> Iterator[tuple[str, Any]]:
        for collection in COLLECTIONS:
            path = collection.replace("policy/{version}", self.cluster.preferred("policy"))
            for item in self.cluster.ask("GET", path)["items"]:
                metadata = item["metadata"]
                fields = [entry.get("fieldsV1") for entry in metadata.get("managedFields") or ()]
                for key in IGNORED:
                    metadata.pop(key, None)
                item.get("spec", {}).pop("clusterIP", None)
                item.get("spec", {}).pop("clusterIPs", None)
                yield f"{collection}/{metadata.get('namespace', '')}/{metadata['name']}", (item, fields)


COLLECTIONS = (
    "/api/v1/configmaps",
    "/api/v1/namespaces",
    "/api/v1/pods",
    "/api/v1/secrets",
    "/api/v1/services",
    "/api/v1/serviceaccounts",
    "/apis/apps/v1/deployments",
    "/apis/networking.k8s.io/v1/ingresses",
    "/apis/policy/{version}/poddisruptionbudgets",
    "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    "/apis/rbac.authorization.k8s.io/v1/roles",
    "/apis/rbac.authorization.k8s.io/v1/rolebindings",
)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Program]]:
    directory = binaries()
    assert directory is not None
    commands = ([os.environ[KUBECTL], "create"], [str(Path(sys.executable).with_name("kubeproxy")), "create"])
    with Host("kubectl") as first, Host("ours") as second:
        found = []
        clusters = []
        try:
            for host, command in zip((first, second), commands, strict=True):
                host.ip("link set lo up", f"address add {ADDRESS[0]}/32 dev lo")
                here = tmp_path_factory.mktemp("cluster")
                cluster = RealCluster(host, here, directory)
                clusters.append(cluster)
                cluster.start_etcd()
                cluster.start_server()
                found.append(Program(cluster, command, here / "admin.conf", {}))
            for program in found:
                program.created()
            yield found
        finally:
            for cluster in clusters:
                cluster.__exit__()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_same_comes_of_it(programs: list[Program], case: Case, tmp_path: Path) -> None:
    theirs, ours = programs
    policy = theirs.cluster.preferred("policy").encode()
    for name, text in case.files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content = text if isinstance(text, bytes) else text.encode()
        path.write_bytes(content.replace(b"policy/v1\n", policy + b"\n"))
    their_status, their_out, their_err = theirs.run(case, tmp_path)
    status, out, err = ours.run(case, tmp_path)
    shown = f"\nkubectl: {their_status}\n{their_out}{their_err}\nours: {status}\n{out}{err}"
    their_objects, objects = theirs.created(), ours.created()
    if case.more:
        assert status <= their_status, shown
        assert set(their_out.splitlines()) <= set(out.splitlines()), shown
        assert their_objects.items() <= objects.items(), shown
    else:
        assert status == their_status, shown
        assert out == their_out, shown
        assert objects == their_objects, shown
        assert bool(err) == bool(their_err), shown
    validates = int(theirs.cluster.ask("GET", "/version")["minor"].rstrip("+")) >= 25
    for text in case.said_by_server if validates and case.said_by_server else case.said:
        assert text in err, shown


def test_a_kubectl_of_that_name_is_there() -> None:
    done = subprocess.run([os.environ[KUBECTL], "version", "--client"], capture_output=True, text=True, check=True)
    assert "Client Version" in done.stdout
