"""The Lease that carries a node's drain report."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

import structlog

from kubeproxy.model import Node
from kubeproxy.model.drain_report import LEASE_S, REPORT, REPORT_NAMESPACE, lease_name

if TYPE_CHECKING:
    from kubeproxy.kubernetes.client.client import Client

log = structlog.get_logger(__name__)

PATH: Final = f"/apis/coordination.k8s.io/v1/namespaces/{REPORT_NAMESPACE}/leases"


class ReportLease:
    """One Lease of this node. A failure is logged once until it changes."""

    def __init__(
        self,
        node_name: str,
        role: str,
        *,
        node: Callable[[], Node | None],
        on_written: Callable[[bool], None],
        unix_clock: Callable[[], float],
    ) -> None:
        """`role` is the value of the Lease's label. `node` returns the Node object, or None if it is unknown.
        `on_written` is called after each attempt to write, with True if it succeeded."""
        self._node_name = node_name
        self._role = role
        self._node = node
        self._on_written = on_written
        self._unix_clock = unix_clock
        self._complaint = ""
        """The error of the last write, or empty if that write succeeded."""
        self.lasts = False
        """Whether the last write made the Lease valid. Otherwise it ended the Lease."""

    async def write(self, client: Client, report: str, *, last: bool = False) -> bool:
        """Write the report, and return whether the API server accepted it. With `last` the report expires at once.

        If the Node object is unknown, nothing is written. Rollouts trust only reports owned by a Node, because
        otherwise anybody could invent nodes for which they would wait.
        """
        from kubeproxy.kubernetes.client.errors import ApiError
        from kubeproxy.kubernetes.object_client import is_not_found

        node = self._node()
        if node is None or not node.uid:
            return False
        lease = self._lease(node, report, 1 if last else LEASE_S)
        try:
            try:
                await self._patch(client, lease)
            except ApiError as error:
                if not is_not_found(error):
                    raise
                await self._create(client, lease)
        except ApiError as error:
            self._on_written(False)
            if str(error) != self._complaint:
                self._complaint = str(error)
                log.warning(
                    "drain report not written, retrying",
                    source="kubernetes",
                    error=str(error),
                    effect="rollouts wait for this node until their time-outs",
                )
            return False
        self.lasts = not last
        self._on_written(True)
        if self._complaint:
            self._complaint = ""
            log.info("drain report written again", source="kubernetes")
        return True

    async def _patch(self, client: Client, lease: dict[str, Any]) -> None:
        import msgspec

        from kubeproxy.kubernetes.object_client import MERGE

        path = f"{PATH}/{quote(lease_name(self._node_name, self._role))}"
        await client.send_json("PATCH", path, msgspec.json.encode(lease), content_type=MERGE)

    async def _create(self, client: Client, lease: dict[str, Any]) -> None:
        import msgspec

        lease["metadata"]["name"] = lease_name(self._node_name, self._role)
        await client.send_json("POST", PATH, msgspec.json.encode(lease))

    def _lease(self, node: Node, report: str, lease_s: int) -> dict[str, Any]:
        """Return the fields of the Lease that this node sets. The Node is its owner, so the Lease is deleted with the
        Node."""
        from kubeproxy.kubernetes import timestamps

        owner = {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.uid}
        return {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {
                "labels": {REPORT: self._role},
                "annotations": {REPORT: report},
                "ownerReferences": [owner],
            },
            "spec": {
                "holderIdentity": self._node_name,
                "leaseDurationSeconds": lease_s,
                "renewTime": timestamps.microseconds(self._unix_clock()),
            },
        }
