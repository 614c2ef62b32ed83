"""What deploy/components/drain-reports grants, on a real API server: a node's token writes reports, and nothing else.
What deploy/components/readiness grants suffices to open a gate.

Skipped unless KUBERNETES_BINARIES names the directory of etcd and kube-apiserver. The admission policy needs 1.30.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

from kubeproxy.controllers.proxy_requests.timeouts import USE_TIMEOUT
from kubeproxy.controllers.readiness.gates import GATE
from kubeproxy.kubernetes import timestamps
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.client.credentials import ClientSettings
from kubeproxy.kubernetes.client.errors import ApiError
from kubeproxy.model.drain_report import REPORT, REPORT_NAMESPACE
from kubeproxy.model.drain_request import REQUESTS
from tests.controllers.live.control_plane import BINARIES, ControlPlane, ask, binaries
from tests.system.deploy.manifests import COMPONENTS, read

pytestmark = [
    pytest.mark.long,
    pytest.mark.timeout(300),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]

HERE = COMPONENTS / "drain-reports"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
ADMISSION = "/apis/admissionregistration.k8s.io/v1"
LEASES = "/apis/coordination.k8s.io/v1/namespaces/{}/leases"
OURS = LEASES.format(REPORT_NAMESPACE)
ACCOUNTS = "/api/v1/namespaces/kube-system/serviceaccounts"
COLLECTIONS = {
    "Namespace": "/api/v1/namespaces",
    "ClusterRole": f"{RBAC}/clusterroles",
    "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
    "Role": f"{RBAC}/namespaces/{REPORT_NAMESPACE}/roles",
    "RoleBinding": f"{RBAC}/namespaces/{REPORT_NAMESPACE}/rolebindings",
}
USERS = {
    "node": "system:serviceaccount:kube-system:kubeproxy",
    "controllers": "system:serviceaccount:kube-system:kubeproxy-controllers",
    "readiness": "system:serviceaccount:kube-system:kubeproxy-readiness",
}
STOLEN = {"spec": {"holderIdentity": "stolen", "leaseDurationSeconds": 2147483647}}


def _lease(node: str = "n1", *, report: str = '{"services":{}}', role: str = "node", duration_s: int = 150) -> Any:
    """A report as `DrainReporter` writes it."""
    return {
        "metadata": {
            "name": f"kubeproxy-drain-{node}" + ("" if role == "node" else f".{role}"),
            "labels": {REPORT: role},
            "annotations": {REPORT: report},
        },
        "spec": {
            "holderIdentity": node,
            "leaseDurationSeconds": duration_s,
            "renewTime": timestamps.microseconds(1_800_000_000.0),
        },
    }


async def _refused(request: Awaitable[Any]) -> int | None:
    """The status of a refusal; None: it was taken."""
    try:
        await request
    except ApiError as error:
        return error.status
    return None


async def _grant(admin: Client) -> None:
    items = [read(path) for path in sorted(HERE.glob("*.yaml")) if path.name != "kustomization.yaml"]
    for item in sorted(items, key=lambda item: str(item["kind"]) != "Namespace"):
        if (collection := COLLECTIONS.get(item["kind"])) is not None:
            await ask(admin, "POST", collection, item)


async def _as(plane: ControlPlane, user: str, token: str = "") -> Client:
    return await Client.connect(ClientSettings(kubeconfig=str(plane.kubeconfig_of(user, token=token)), qps=0))


def _play(directory: Path, scenario: Callable[[ControlPlane, Client], Awaitable[None]]) -> None:
    async def play(plane: ControlPlane) -> None:
        admin = await plane.connect()
        try:
            await _grant(admin)
            await scenario(plane, admin)
        finally:
            await admin.close()

    programs = binaries()
    assert programs is not None
    flags = ("--authorization-mode=RBAC",)
    with ControlPlane(directory, programs, users=USERS, flags=flags) as plane:
        asyncio.run(play(plane))


def test_a_nodes_token_writes_reports_and_no_lease_of_kube_system(tmp_path: Path) -> None:
    async def scenario(plane: ControlPlane, admin: Client) -> None:
        leader = {**STOLEN, "metadata": {"name": "kube-controller-manager"}, "spec": {"holderIdentity": "leader"}}
        await ask(admin, "POST", LEASES.format("kube-system"), leader)
        node = await _as(plane, "node")
        try:
            for namespace in ("kube-system", "kube-node-lease", "default"):
                assert await _refused(ask(node, "POST", LEASES.format(namespace), _lease())) == 403
                path = f"{LEASES.format(namespace)}/kube-controller-manager"
                assert await _refused(ask(node, "PATCH", path, STOLEN)) == 403
            assert await _refused(ask(node, "POST", OURS, _lease())) is None
            assert await _refused(ask(node, "PATCH", f"{OURS}/kubeproxy-drain-n1", _lease())) is None
            for method, path in (("GET", OURS), ("DELETE", f"{OURS}/kubeproxy-drain-n1")):
                assert await _refused(ask(node, method, path)) == 403
        finally:
            await node.close()

    _play(tmp_path, scenario)


def test_the_controllers_read_reports_and_write_services(tmp_path: Path) -> None:
    async def scenario(plane: ControlPlane, admin: Client) -> None:
        controllers = await _as(plane, "controllers")
        try:
            assert await _refused(ask(controllers, "GET", OURS)) is None
            assert await _refused(ask(controllers, "GET", LEASES.format("kube-system"))) == 403
            service = "/api/v1/namespaces/default/services/web"
            await ask(
                admin,
                "POST",
                service.rpartition("/")[0],
                {"metadata": {"name": "web"}, "spec": {"ports": [{"port": 80}]}},
            )
            await ask(controllers, "PATCH", service, {"metadata": {"annotations": {"a": "b"}}})
            await ask(admin, "DELETE", f"{RBAC}/clusterrolebindings/kubeproxy-controllers-drains")
            while await _refused(ask(controllers, "PATCH", service, {"metadata": {"annotations": {"a": "c"}}})) != 403:
                await asyncio.sleep(0.1)
            await _open_a_gate(plane, admin, service)
        finally:
            await controllers.close()

    _play(tmp_path, scenario)


async def _open_a_gate(plane: ControlPlane, admin: Client, service: str) -> None:
    """Have the controller of readiness gates do all that it ever does: the one node that reports does not answer."""
    for path in (COMPONENTS / "readiness").glob("*role*.yaml"):
        item = read(path)
        namespace = item["metadata"].get("namespace", "")
        await ask(admin, "POST", COLLECTIONS[item["kind"]].replace(REPORT_NAMESPACE, namespace), item)
    node = await ask(admin, "POST", "/api/v1/nodes", {"metadata": {"name": "n1"}})
    lease, now = _lease(), timestamps.seconds(time.time())
    owner = {"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": node["metadata"]["uid"]}
    lease["metadata"]["ownerReferences"] = [owner]
    lease["spec"]["renewTime"] = timestamps.microseconds(time.time())
    await ask(admin, "POST", OURS, lease)
    await ask(admin, "PATCH", service, {"spec": {"selector": {"app": "web"}}})
    metadata = {"name": "web", "labels": {"app": "web"}, "annotations": {USE_TIMEOUT: "7s"}}
    gates = [{"conditionType": GATE}]
    spec = {"nodeName": "n1", "containers": [{"name": "a", "image": "a"}], "readinessGates": gates}
    pod = "/api/v1/namespaces/default/pods/web"
    await ask(admin, "POST", pod.rpartition("/")[0], {"metadata": metadata, "spec": spec})
    condition = {"type": "ContainersReady", "status": "True", "lastTransitionTime": now}
    address = {"podIP": "10.244.0.7", "podIPs": [{"ip": "10.244.0.7"}]}
    await ask(admin, "PATCH", f"{pod}/status", {"status": {"phase": "Running", "conditions": [condition], **address}})
    plane.start_ours("--controllers=readiness", name="readiness", user="readiness")

    async def said() -> str:
        stated = (await ask(admin, "GET", pod))["status"]["conditions"]
        return next((each["reason"] for each in stated if each["type"] == GATE and each["status"] == "True"), "")

    async def events() -> list[str]:
        every = (await ask(admin, "GET", "/api/v1/namespaces/default/events"))["items"]
        return [each["reason"] for each in every if each["involvedObject"]["kind"] == "Pod"]

    while not await said() or not await events():
        await asyncio.sleep(0.1)
    assert await said() == "TimedOut"
    assert await events() == ["ProxiesNotFollowing"]
    requests = (await ask(admin, "GET", service))["metadata"]["annotations"][REQUESTS]
    assert '"want":"ready"' in requests
    assert await ask(admin, "GET", f"{LEASES.format('kube-system')}/kubeproxy-readiness")
    assert "forbidden" not in plane.log("readiness"), plane.log("readiness")


async def _enforce(admin: Client) -> bool:
    """Put the admission policy into force; False: this server has none."""
    for name in ("policy", "policy-binding"):
        item = read(HERE / f"admission-{name}.yaml")
        plural = "validatingadmissionpolicies" if name == "policy" else "validatingadmissionpolicybindings"
        if await _refused(ask(admin, "POST", f"{ADMISSION}/{plural}", item)) == 404:
            return False
    return True


async def _token_on(admin: Client, node: str, kind: str) -> str:
    """A token of the daemon's account, bound to a pod on a node, as the kubelet asks for it, or to the Node."""
    made = await ask(admin, "POST", "/api/v1/nodes", {"metadata": {"name": node}})
    if kind == "Pod":
        pod: Any = {
            "metadata": {"name": f"kubeproxy-{node}"},
            "spec": {"nodeName": node, "serviceAccountName": "kubeproxy", "containers": [{"name": "a", "image": "a"}]},
        }
        made = await ask(admin, "POST", "/api/v1/namespaces/kube-system/pods", pod)
    bound = {"kind": kind, "apiVersion": "v1", "name": made["metadata"]["name"], "uid": made["metadata"]["uid"]}
    wanted = {"spec": {"audiences": ["https://kubernetes.default.svc"], "boundObjectRef": bound}}
    answer = await ask(admin, "POST", f"{ACCOUNTS}/kubeproxy/token", wanted)
    return str(answer["status"]["token"])


def test_the_policy_ties_a_report_to_the_node_of_the_token(tmp_path: Path) -> None:
    async def scenario(plane: ControlPlane, admin: Client) -> None:
        if not await _enforce(admin):
            pytest.skip("this server is older than 1.30: it has no ValidatingAdmissionPolicy")
        await ask(admin, "POST", ACCOUNTS, {"metadata": {"name": "kubeproxy"}})
        first = await _as(plane, "n1", await _token_on(admin, "n1", "Pod"))
        second = await _as(plane, "n2", await _token_on(admin, "n2", "Node"))
        nobody = await _as(plane, "node")
        try:
            while await _refused(ask(nobody, "POST", OURS, _lease("n9"))) is None:  # the policy is read by a watch
                await ask(admin, "DELETE", f"{OURS}/kubeproxy-drain-n9")
                await asyncio.sleep(0.2)
            assert await _refused(ask(nobody, "POST", OURS, _lease("n9"))) == 403
            uid = (await ask(admin, "GET", "/api/v1/nodes/n1"))["metadata"]["uid"]
            owned = _lease()
            owned["metadata"]["ownerReferences"] = [{"apiVersion": "v1", "kind": "Node", "name": "n1", "uid": uid}]
            assert await _refused(ask(first, "POST", OURS, owned)) is None
            assert await _refused(ask(first, "PATCH", f"{OURS}/kubeproxy-drain-n1", owned)) is None
            assert await _refused(ask(first, "POST", OURS, _lease(role="leaving", duration_s=1))) is None
            assert await _refused(ask(second, "POST", OURS, _lease("n2"))) is None
            for forged in (_lease("n2"), _lease("n3"), _lease("n1.leaving")):
                assert await _refused(ask(first, "POST", OURS, forged)) == 403, forged
            assert await _refused(ask(first, "PATCH", f"{OURS}/kubeproxy-drain-n2", _lease("n2"))) == 403
            foreign = dict(owned["metadata"]["ownerReferences"][0], name="n2")
            for wrong in (
                _lease(report="x" * 65537),
                _lease(duration_s=2147483647),
                _lease(role="other"),
                {**_lease(), "metadata": {**_lease()["metadata"], "finalizers": ["example.com/stays"]}},
                {**_lease(), "metadata": {**_lease()["metadata"], "ownerReferences": [foreign]}},
                {"metadata": {"annotations": {"more": "x"}}},
                {"metadata": {"labels": {"more": "x"}}},
                {"spec": {"holderIdentity": "n2"}},
            ):
                wrong.get("metadata", {}).pop("name", None)
                status = await _refused(ask(first, "PATCH", f"{OURS}/kubeproxy-drain-n1", wrong))
                assert status in (403, 422), json.dumps(wrong)[:200]
            assert await _refused(ask(first, "PATCH", f"{OURS}/kubeproxy-drain-n1", owned)) is None
        finally:
            for client in (first, second, nobody):
                await client.close()

    _play(tmp_path, scenario)
