"""Implements ``kubeproxy bugreport``, which packs the information that is needed to find a fault into one file."""

from __future__ import annotations

import io
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import click

from kubeproxy.cli.daemon_client import ADDRESS, CONFIG, INSTALLED, Daemon, daemon_at
from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.model.version import __version__
from kubeproxy.observability.redaction import redact
from kubeproxy.runtime import compiled
from kubeproxy.runtime.output import echo

MOST_BYTES: Final = 32 * 2**20
"""The largest size of a part in bytes. The rest of a larger part is left out. The rules of 10,000 Services have 10
MB."""
PROGRAM_S: Final = 20.0
"""The longest run of a program in seconds. nft lists 250,000 elements in some seconds."""
LOG_LINES: Final = 5000
UNIT: Final = "kubeproxy"

PAGES: Final = {
    "status.txt": "/statusz?format=text",
    "status.json": "/statusz?format=json",
    "configz.json": "/configz",
    "metrics.txt": "/metrics",
    "tasks.txt": "/debug/tasks",
}
"""The pages of the daemon's metrics port, by the name of the part."""
PROGRAMS: Final = {
    "rules/nftables-own.txt": ("nft", "list", "table", "inet", "kubeproxy"),
    "rules/nftables-tables.txt": ("nft", "list", "tables"),
    "rules/nftables-chains.txt": ("nft", "list", "chains"),
    "rules/iptables-legacy.txt": ("iptables-legacy-save", "-c"),
    "rules/ip6tables-legacy.txt": ("ip6tables-legacy-save", "-c"),
    "network/addresses.txt": ("ip", "-d", "-s", "address"),
    "network/routes4.txt": ("ip", "-4", "route", "show", "table", "all"),
    "network/routes6.txt": ("ip", "-6", "route", "show", "table", "all"),
    "network/rules4.txt": ("ip", "-4", "rule"),
    "network/rules6.txt": ("ip", "-6", "rule"),
    "network/neighbours.txt": ("ip", "neighbour"),
    "network/sockets.txt": ("ss", "-s"),
    "network/listening.txt": ("ss", "-lntup"),
    "conntrack/statistics.txt": ("conntrack", "-S"),
    "log.txt": ("journalctl", "--no-pager", "-o", "short-iso", "-n", str(LOG_LINES), "-u", UNIT),
    "versions/nft.txt": ("nft", "--version"),
    "versions/iptables.txt": ("iptables-legacy", "--version"),
}
FILES: Final = {
    "conntrack/processors.txt": "/proc/net/stat/nf_conntrack",
    "network/netstat.txt": "/proc/net/netstat",
    "network/snmp.txt": "/proc/net/snmp",
    "network/softnet.txt": "/proc/net/softnet_stat",
    "versions/system.txt": "/etc/os-release",
    "machine/memory.txt": "/proc/meminfo",
    "machine/load.txt": "/proc/loadavg",
    "machine/pressure-cpu.txt": "/proc/pressure/cpu",
    "machine/pressure-memory.txt": "/proc/pressure/memory",
}
SYSCTLS: Final = (
    *("net/ipv4/ip_forward", "net/ipv4/ip_local_port_range", "net/ipv4/ip_nonlocal_bind", "net/ipv4/tcp_migrate_req"),
    *("net/ipv6/conf/all/forwarding", "net/core/somaxconn", "net/core/rmem_max", "net/core/wmem_max"),
    *("net/bridge/bridge-nf-call-iptables", "net/bridge/bridge-nf-call-ip6tables"),
    *("fs/nr_open", "fs/file-nr", "kernel/threads-max", "net/ipv4/conf/*/rp_filter", "net/ipv4/conf/*/route_localnet"),
    *("net/ipv4/conf/*/accept_local", "net/netfilter/nf_conntrack_*"),
)
"""Patterns of the kernel settings, below /proc/sys."""
LEFT_OUT: Final = """\
Not in this archive, on purpose: kubeconfig files, tokens, keys and certificates; the environment of processes; entries
of connection tracking and the access log (they name clients); manifests. Private keys, tokens, passwords, and the user
and query of URLs were replaced by [redacted] in everything else. Names and addresses of Services, endpoints and this
node ARE in it: read it before you give it away.
"""


@click.command(short_help="Pack status, rules, settings and log into one file for a bug report.")
@click.option(
    "--output", "-o", metavar="FILE", default="", help="The archive.  [kubeproxy-bugreport-NODE-TIME.tar.gz here]"
)
@ADDRESS
@CONFIG
def bugreport(output: str, address: str, config: str) -> int:
    """Pack what is needed to find a fault into one .tar.gz: status, configuration, metrics, rules, routes, kernel
    settings, figures of connection tracking, the end of the log, and versions.

    Credentials are left out or replaced; manifest.txt in the archive says what else is not in it, and why. A daemon
    that does not answer is no obstacle. Run as root, or rules and the log are missing.

    Exit status: 0 the archive is written; 1 it cannot be written; 64 the command line is wrong.
    """
    now = time.localtime()
    path = Path(output or f"kubeproxy-bugreport-{platform.node()}-{time.strftime('%Y%m%dT%H%M%S', now)}.tar.gz")
    report = Report(time.strftime("%Y-%m-%dT%H:%M:%S%z", now))
    try:
        daemon = daemon_at(address, config)
    except ConfigError as error:
        report.miss("the daemon's pages", str(error))
    else:
        _pages(report, daemon)
    report.add("config.yaml", lambda: Path(config or INSTALLED).read_bytes())
    for name, command in PROGRAMS.items():
        report.add(name, lambda command=command: _output(*command))  # type: ignore[misc]
    for name, file in FILES.items():
        report.add(name, lambda file=file: Path(file).read_bytes())  # type: ignore[misc]
    report.add("sysctls.txt", lambda: "".join(_sysctls()).encode())
    report.add("processes.txt", lambda: "".join(_processes()).encode())
    report.add("versions/kubeproxy.txt", _versions)
    try:
        report.write(path)
    except OSError as error:
        raise KubeproxyError(f"cannot write {path}: {error.strerror}") from error
    echo(f"{path}: {len(report.parts)} parts, {path.stat().st_size / 1024:.0f} KiB; not there: {len(report.missing)}")
    echo("It names Services, endpoints and this node. Credentials were left out; read it before you give it away.")
    return 0


@dataclass(slots=True)
class Report:
    """The contents of an archive: redacted parts, and the reasons for missing parts."""

    taken: str
    """When the report was begun, in local time."""
    parts: dict[str, bytes] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    """Why a part is missing, by its name."""

    def add(self, name: str, read: Callable[[], bytes]) -> None:
        """Add a part with the bytes that `read` returns. If `read` raises, record the reason for the manifest."""
        try:
            found = read()
        except (OSError, KubeproxyError, ConfigError, subprocess.SubprocessError) as error:
            self.miss(name, str(error))
            return
        if len(found) > MOST_BYTES:
            self.miss(name, f"only the first {MOST_BYTES >> 20} MiB of {len(found) >> 20} are there")
        self.parts[name] = redact(found[:MOST_BYTES].decode(errors="replace")).encode()

    def miss(self, name: str, reason: str) -> None:
        """Record, for the manifest, why a part is missing."""
        self.missing[name] = redact(reason)

    def write(self, path: Path) -> None:
        """Write the archive. Only its owner can read it."""
        manifest = [f"kubeproxy {__version__}, bug report of {platform.node()}, {self.taken}\n\n{LEFT_OUT}\n"]
        manifest += [f"{name}: {len(data)} bytes\n" for name, data in self.parts.items()]
        manifest += [f"{name}: MISSING: {reason}\n" for name, reason in self.missing.items()]
        with (
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file,
            tarfile.open(fileobj=file, mode="w:gz") as archive,
        ):
            for name, data in {"manifest.txt": "".join(manifest).encode(), **self.parts}.items():
                info = tarfile.TarInfo(f"{path.name.partition('.')[0]}/{name}")
                info.size, info.mode, info.mtime = len(data), 0o600, int(time.time())
                archive.addfile(info, io.BytesIO(data))


def _pages(report: Report, daemon: Daemon) -> None:
    """Add the daemon's pages. If the daemon does not answer the first request, send no others."""
    for name, page in PAGES.items():
        report.add(name, lambda page=page: daemon.get(page))  # type: ignore[misc]
        if "no daemon answers" in report.missing.get(name, ""):
            break


def _output(*command: str) -> bytes:
    """Return the output of a program, with its standard error. Raise OSError if the program is not installed."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    done = subprocess.run(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=PROGRAM_S,
        check=False,
    )
    return done.stdout + (f"exit status {done.returncode}\n".encode() if done.returncode else b"")


def _sysctls() -> Iterator[str]:
    root = Path("/proc/sys")
    for pattern in SYSCTLS:
        for path in sorted(root.glob(pattern)):
            try:
                value = " ".join(path.read_text().split())
            except OSError as error:
                value = f"({error.strerror})"
            yield f"{path.relative_to(root).as_posix().replace('/', '.')} = {value}\n"


def _processes() -> Iterator[str]:
    """Yield text about the processes of kubeproxy, with their limits and memory. It contains nothing of their
    environment."""
    for path in sorted(Path("/proc").glob("[0-9]*"), key=lambda entry: int(entry.name)):
        try:
            command = path.joinpath("cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            if "kubeproxy" not in command or int(path.name) == os.getpid():
                continue
            yield f"process {path.name}: {command}\n"
            yield f"descriptors: {sum(1 for _ in path.joinpath('fd').iterdir())}\n"
            yield (
                "".join(path.joinpath(name).read_text() for name in ("status", "limits", "smaps_rollup", "stat")) + "\n"
            )
        except OSError as error:  # The process has ended, or belongs to another user.
            yield f"process {path.name}: {error.strerror}\n"


def _versions() -> bytes:
    from importlib.metadata import distributions

    packages = sorted(f"{distribution.name}=={distribution.version}" for distribution in distributions())
    lines = [
        f"kubeproxy {__version__}, byte path {compiled.form()}",
        f"Python {sys.version}",
        " ".join(platform.uname()),
        "",
        *packages,
    ]
    return "\n".join(lines).encode()
