"""The tables of docs/migration.md, from the schema and the table of flags:
``python -m docs.generators.migration docs/migration.md`` puts them there."""

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
    """What becomes of a setting of kube-proxy's."""

    SAME = "same"
    DIFFERENT = "different"
    NOT_APPLICABLE = "not applicable"


DIFFERENT: Final[Mapping[str, str]] = {
    "mode": "Selects nothing: every mode is served by this userspace proxy. `iptables` and `nftables` say which packet"
    " filter is tried first; `ipvs` and `kernelspace` are accepted. A mode that the kernel cannot do is no error.",
    "bindAddress": "Where the proxy ports listen, as in the userspace mode. It says nothing about the node's own"
    " address, which is that of the default route.",
    "portRange": "Counts, as in the userspace mode (kube-proxy ignores it since 1.26). A port that another process has"
    " is stepped over.",
    "udpIdleTimeout": "1m0s by default rather than 250ms, which loses every answer that takes longer. Many a"
    " file that was made for another mode has 250ms, those of EKS among them: take it out.",
    "enableProfiling": "Python's: `/debug/tasks` and `/debug/stacks` instead of `/debug/pprof`.",
    "clusterCIDR": "Tells pods from other clients where `externalTrafficPolicy: Local` does; nothing is masqueraded by"
    " it.",
    "nodePortAddresses": "Counts (kube-proxy's userspace mode ignored it). Empty: all addresses of the node, in mode"
    " `nftables` as well, where kube-proxy takes the primary ones.",
    "iptables.localhostNodePorts": "In every mode, for ::1 as for 127.0.0.1.",
    "iptables.syncPeriod": "For either packet filter, unless mode is `nftables`.",
    "iptables.minSyncPeriod": "As above. Does not delay changes of endpoints, which are no matter of rules. On the"
    " command line 0 means no wait, and is written to a file as `1ns`, since there 0 stands for the default.",
    "nftables.minSyncPeriod": "As iptables.minSyncPeriod, for mode `nftables`.",
    "conntrack.maxPerCore": "Lets the kernel's table grow, never shrink.",
    "conntrack.min": "Lets the kernel's table grow, never shrink.",
    "metricsBindAddress": "Port 0 turns the server off, in the file as well. Other hosts get `/metrics`, `/healthz` and"
    " `/proxyMode` only, unless `kubeproxy.publicStatus` is set; loopback gets every page, and always listens.",
    "healthzBindAddress": "Port 0 turns the server off, in the file as well. Loopback is told more than kube-proxy's"
    " fields.",
    "logging.verbosity": "0: what an operator needs; 2: and what libraries say; 4: for debugging; 8: everything.",
}
"""Fields that mean something else, or something more, than in kube-proxy; and what."""

_DIFFERENT_FLAGS: Final[Mapping[str, str]] = {
    "config": "The file is read again at SIGHUP; kube-proxy ends when it changes. More flags win over it:"
    " see [configuration.md](configuration.md).",
    "cleanup": "Removes our rules and those of kube-proxy's userspace mode; not those of its other modes.",
    "healthz-port": "Counts where the address is given without a port, or not at all; 0 turns the server off.",
    "metrics-port": "As above; in kube-proxy 0 does not turn this server off.",
    "init-only": "Refused: there is no initialization apart from that of the daemon.",
}
_OURS_BY_GROUP_ONLY: Final = "kubeproxy.master"
"""A flag of kube-proxy's for which its file has no field: ours stands in our group."""


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

Accepted, and with an effect; but not quite kube-proxy's.
""",
    Verdict.SAME: """\
## Settings that are the same

[configuration.md](configuration.md) says what each takes, its default, and what a change of it needs.
""",
    Verdict.NOT_APPLICABLE: """\
## Settings that are not applicable

Accepted, so that files and command lines work as they are; one line at start names those that were set to something.
""",
}


def tables() -> str:
    """The tables of the document."""
    return "\n".join(line for verdict in _TABLES for line in _table(verdict))


def put_into(document: str) -> str:
    """The document with its tables as they are now. ValueError where their place is not marked."""
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
