"""Generates the tables of docs/migration.md from the schema and the table of flags.

``python -m docs.generators.migration docs/migration.md`` replaces them in the file.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final

from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import Field, fields
from kubeproxy.config.flags import ACTIONS, Flag, flags

BEGIN: Final = "<!-- settings: begin -->\n"
END: Final = "<!-- settings: end -->\n"
"""The markers around the generated tables."""


class Verdict(StrEnum):
    """How a setting of kube-proxy works here."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_APPLICABLE = "not applicable"


DIFFERENT: Final[Mapping[str, str]] = {
    "mode": "Selects only the packet filter that is tried first (`iptables` or `nftables`); `kubeproxy.dataPath`"
    " chooses the data path in every mode. `ipvs` and `kernelspace` are accepted, and a mode that the kernel does not"
    " support is no error.",
    "bindAddress": "Address of the proxy ports, as in the userspace mode. The node's own address is not taken from it,"
    " but from the default route.",
    "portRange": "Has an effect, as in the userspace mode (kube-proxy ignores it since 1.26). A port of another"
    " process is skipped.",
    "udpIdleTimeout": "The default is 1m0s instead of 250ms, with which every slower answer is lost. Many files made"
    " for another mode have 250ms, among them those of EKS: remove it.",
    "enableProfiling": "Adds Python's `/debug/tasks` and `/debug/stacks` instead of `/debug/pprof`.",
    "clusterCIDR": "Distinguishes [pods of this node](netfilter.md#pods-of-this-node) from other clients for"
    " `externalTrafficPolicy: Local`. On the kernel path clients of cluster IPs that are no pods are masqueraded, as by"
    " kube-proxy.",
    "nodePortAddresses": "Has an effect (kube-proxy's userspace mode ignored it). Empty: all addresses of the node,"
    " also in mode `nftables`, where kube-proxy takes the primary ones.",
    "iptables.localhostNodePorts": "Applies in every mode, and to ::1 as well as 127.0.0.1.",
    "iptables.syncPeriod": "Applies to both packet filters, unless mode is `nftables`.",
    "iptables.minSyncPeriod": "As iptables.syncPeriod. Does not delay changes of endpoints, which need no rules. On the"
    " command line 0 means no wait; in a file that is `1ns`, because there 0 means the default.",
    "nftables.minSyncPeriod": "As iptables.minSyncPeriod, for mode `nftables`.",
    "conntrack.maxPerCore": "Makes the kernel's table larger, never smaller.",
    "conntrack.min": "Makes the kernel's table larger, never smaller.",
    "metricsBindAddress": "Port 0 turns the server off, in the file as well. Other hosts get `/metrics`, `/healthz` and"
    " `/proxyMode` only, unless `kubeproxy.publicStatus` is set; loopback gets every page, and always listens.",
    "healthzBindAddress": "Port 0 turns the server off, in the file as well. Clients by loopback get more than"
    " kube-proxy's fields.",
    "logging.verbosity": "0 logs messages for the operator, 2 also those of libraries, 4 debugging, 8 everything.",
}
"""Fields whose meaning differs from kube-proxy's, or goes beyond it."""

_DIFFERENT_FLAGS: Final[Mapping[str, str]] = {
    "config": "The file is read again at SIGHUP; kube-proxy ends when it changes. More flags override it:"
    " see [configuration.md](configuration.md).",
    "cleanup": "Removes our rules, those of kube-proxy's userspace mode, and the interface and virtual servers of its"
    " ipvs mode; not the rules of its other modes.",
    "healthz-port": "Applies if the address has no port or is not given; 0 turns the server off.",
    "metrics-port": "As --healthz-port; in kube-proxy 0 does not turn this server off.",
    "init-only": "Sets the sizes of connection tracking and does nothing else. What the kernel refuses is logged"
    " and is no error.",
}
_OURS_BY_GROUP_ONLY: Final = "kubeproxy.master"
"""The field for a flag of kube-proxy that has no field in kube-proxy's file."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of kube-proxy: a field, a flag, or both."""

    field: str
    flag: str
    verdict: Verdict
    remark: str


def entries() -> list[Entry]:
    """Return every setting of kube-proxy, fields first, in the order of the schema."""
    of_fields = [_of_field(field) for field in fields().values() if not field.ours or field.path == _OURS_BY_GROUP_ONLY]
    with_field = {field.flag for field in fields().values()}
    return of_fields + [_of_flag(flag) for flag in flags().values() if flag.name not in with_field]


def _of_field(field: Field) -> Entry:
    flag = flags()[field.flag].dashed if field.flag else ""
    if field.effect is Effect.NONE:
        return Entry(field.path, flag, Verdict.NOT_APPLICABLE, field.text)
    if (remark := DIFFERENT.get(field.path)) is not None:
        return Entry(field.path, flag, Verdict.DIFFERENT, remark)
    return Entry(field.path, flag, Verdict.SAME, field.text)


def _of_flag(flag: Flag) -> Entry:
    if (remark := _DIFFERENT_FLAGS.get(flag.name)) is not None:
        return Entry(flag.path, flag.dashed, Verdict.DIFFERENT, remark)
    same = flag in ACTIONS
    return Entry(flag.path, flag.dashed, Verdict.SAME if same else Verdict.NOT_APPLICABLE, flag.text)


_TABLES: Final[Mapping[Verdict, str]] = {
    Verdict.DIFFERENT: """\
## Settings that are different

These settings are accepted, and their effect differs from kube-proxy's.
""",
    Verdict.SAME: """\
## Settings that are the same

[configuration.md](configuration.md) has the values, the default of each, and whether a change needs a restart.
""",
    Verdict.NOT_APPLICABLE: """\
## Settings that are not applicable

These settings are accepted so that files and command lines work unchanged. One line at start lists those that are set.
""",
}


def tables() -> str:
    """Return the tables of the document."""
    return "\n".join(line for verdict in _TABLES for line in _table(verdict))


def insert(document: str) -> str:
    """Return the document with new tables. Raise ValueError if the markers are missing."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise ValueError(f"expected {BEGIN!r} and {END!r}")
    return f"{before}{begin}{tables()}{end}{after}"


def _table(verdict: Verdict) -> Iterator[str]:
    yield _TABLES[verdict]
    yield "| field | flag | |"
    yield "|---|---|---|"
    for entry in entries():
        if entry.verdict is verdict:
            names = (f"`{name}`" if name else "" for name in (entry.field, entry.flag))
            yield "| " + " | ".join(cell.replace("|", r"\|") for cell in (*names, entry.remark)) + " |"
    yield ""


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(insert(path.read_text(encoding="utf-8")), encoding="utf-8")
