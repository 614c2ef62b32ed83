"""Writes the tables of docs/migration.md, from the schema and the table of flags.

``python -m docs.generators.migration docs/migration.md`` puts them into the page.
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
"""Where the tables stand."""


class Verdict(StrEnum):
    """Whether a setting of kube-proxy means the same here."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_APPLICABLE = "not applicable"


DIFFERENT: Final[Mapping[str, str]] = {
    "mode": "Selects no mode: every mode is served by this userspace proxy. `iptables` and `nftables` choose the packet"
    " filter to try first; `ipvs` and `kernelspace` are accepted. A mode that the kernel lacks is no error.",
    "bindAddress": "Where the proxy ports listen, as in the userspace mode. It does not set the node's own address,"
    " which is that of the default route.",
    "portRange": "Has an effect, as in the userspace mode (kube-proxy ignores it since 1.26). Ports of other processes"
    " are skipped.",
    "udpIdleTimeout": "1m0s by default instead of 250ms, which loses every later answer. Many files for other modes"
    " have 250ms, those of EKS among them: remove it.",
    "enableProfiling": "Python's: `/debug/tasks` and `/debug/stacks` instead of `/debug/pprof`.",
    "clusterCIDR": "Distinguishes pods from other clients under `externalTrafficPolicy: Local`; nothing is"
    " masqueraded.",
    "nodePortAddresses": "Has an effect (kube-proxy's userspace mode ignored it). Empty: all addresses of the node,"
    " also in mode `nftables`, where kube-proxy takes the primary ones.",
    "iptables.localhostNodePorts": "In every mode, for ::1 and for 127.0.0.1.",
    "iptables.syncPeriod": "For either packet filter, unless mode is `nftables`.",
    "iptables.minSyncPeriod": "As above. Does not delay changes of endpoints, which change no rules. On the command"
    " line 0 means no wait; in a file that is `1ns`, since 0 stands for the default there.",
    "nftables.minSyncPeriod": "As iptables.minSyncPeriod, for mode `nftables`.",
    "conntrack.maxPerCore": "Raises the kernel's limit, never lowers it.",
    "conntrack.min": "Raises the kernel's limit, never lowers it.",
    "metricsBindAddress": "Port 0 turns the server off, in the file as well. Other hosts get `/metrics`, `/healthz` and"
    " `/proxyMode` only, unless `kubeproxy.publicStatus` is set; loopback gets every page, and always listens.",
    "healthzBindAddress": "Port 0 turns the server off, in the file as well. Loopback gets more than kube-proxy's"
    " fields.",
    "logging.verbosity": "0: what an operator needs; 2: also messages of libraries; 4: for debugging; 8: everything.",
}
"""Fields that have another meaning than in kube-proxy, and the difference."""

_DIFFERENT_FLAGS: Final[Mapping[str, str]] = {
    "config": "SIGHUP reads the file again; kube-proxy exits when it changes. More flags win over it:"
    " see [configuration.md](configuration.md).",
    "cleanup": "Removes our rules and those of kube-proxy's userspace mode; not those of its other modes.",
    "healthz-port": "Has an effect if the address has no port, or is not set; 0 turns the server off.",
    "metrics-port": "As above; in kube-proxy 0 does not turn this server off.",
    "init-only": "Refused: the daemon needs no separate initialization.",
}
_OURS_BY_GROUP_ONLY: Final = "kubeproxy.master"
"""A flag without a field in kube-proxy's file: our field for it is in our group."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One setting of kube-proxy's: a field, a flag, or both."""

    field: str
    flag: str
    verdict: Verdict
    remark: str


def entries() -> list[Entry]:
    """Every setting of kube-proxy's, fields first, in the order of the schema. Pure."""
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

Accepted, with an effect that differs from kube-proxy's.
""",
    Verdict.SAME: """\
## Settings that are the same

[configuration.md](configuration.md) has the allowed values, the default, and when a change takes effect.
""",
    Verdict.NOT_APPLICABLE: """\
## Settings that are not applicable

Accepted, so that files and command lines work unchanged; one line at start names those that are set.
""",
}


def tables() -> str:
    """The tables of the document."""
    return "\n".join(line for verdict in _TABLES for line in _table(verdict))


def put_into(document: str) -> str:
    """The document with current tables. ValueError if it does not mark their place."""
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
    path.write_text(put_into(path.read_text(encoding="utf-8")), encoding="utf-8")
