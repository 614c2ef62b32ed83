"""Implements ``kubeproxy controller-manager``."""

from __future__ import annotations

import socket
from collections.abc import Mapping
from typing import Any, Final
from uuid import uuid4

import click
from msgspec import inspect

from kubeproxy.cli.go_flags import as_click
from kubeproxy.config.flags import Flag
from kubeproxy.config.value_types import Duration
from kubeproxy.model.errors import ConfigError

_SWITCH: Final = inspect.BoolType()
_TEXT: Final = inspect.StrType()
_SUFFIX: Final = "-controller"
_ALIASES: Final = {"replication": "replicationcontroller", "replicationcontroller": "replicationcontroller"}


def _duration(ctx: click.Context, param: click.Parameter, value: str) -> Duration:
    """Parse the value of a flag, which is a duration in Go's notation."""
    try:
        return Duration.parse(value)
    except ValueError:
        raise click.BadParameter(f"found {value!r}; allowed: {Duration.ALLOWED}", ctx, param) from None


_POSITIVE: Final = click.IntRange(min=1)
_PORT: Final = click.IntRange(0, 65535)

_OPTIONS: Final[tuple[tuple[str, Any, Any, str], ...]] = (
    ("kubeconfig", str, "", "The API server and its credentials. Without it, the in-cluster configuration is used."),
    ("master", str, "", "The API server's URL. It overrides the kubeconfig's."),
    (
        "controllers",
        str,
        "*",
        "Controllers to run: * for all, NAME for one, -NAME to exclude one. Names: deployment, replicaset,"
        " replicationcontroller, readiness.",
    ),
    ("concurrent-deployment-syncs", _POSITIVE, 5, "The number of Deployments that are synced at once."),
    ("concurrent-replicaset-syncs", _POSITIVE, 5, "The number of ReplicaSets that are synced at once."),
    ("concurrent-rc-syncs", _POSITIVE, 5, "The number of ReplicationControllers that are synced at once."),
    ("concurrent-readiness-syncs", _POSITIVE, 5, "The number of namespaces whose readiness gates are checked at once."),
    (
        "min-resync-period",
        Duration,
        "12h",
        "Every object is synced again after this time or up to twice as much.",
    ),
    ("kube-api-qps", float, 20.0, "Requests a second, for each controller."),
    ("kube-api-burst", _POSITIVE, 30, "Requests at once, for each controller."),
    ("leader-elect", bool, True, "Work only while this process holds the Lease."),
    ("leader-elect-lease-duration", Duration, "15s", "Another process takes over after this time."),
    ("leader-elect-renew-deadline", Duration, "10s", "Work ends after this time without a renewal."),
    ("leader-elect-retry-period", Duration, "2s", "The time between two renewals, or two attempts to get the Lease."),
    ("leader-elect-resource-lock", click.Choice(["leases"]), "leases", "The kind of object; Leases only."),
    (
        "leader-elect-resource-name",
        str,
        "",
        "The Lease's name. By default kubeproxy-controller-manager, or kubeproxy-readiness if only readiness runs.",
    ),
    ("leader-elect-resource-namespace", str, "kube-system", "The Lease's namespace."),
    (
        "require-exclusive",
        bool,
        False,
        "Exit with status 1 if kube-controller-manager controls the same objects. Otherwise only warn.",
    ),
    ("address", str, "127.0.0.1", "The address of health, metrics and status by plain HTTP."),
    ("port", _PORT, 10252, "The port for plain HTTP; 0: none."),
    ("bind-address", str, "0.0.0.0", "The address of the same pages by TLS, for clients that the API server allows."),
    ("secure-port", _PORT, 0, "The port for TLS; 0: none. kube-controller-manager's is 10257."),
    ("tls-cert-file", str, "", "The TLS certificate with its chain. Without it, a self-signed certificate is made."),
    ("tls-private-key-file", str, "", "The key of the TLS certificate."),
    ("client-ca-file", str, "", "Authorities of client certificates; the common name is the user."),
    (
        "authorization-always-allow-paths",
        str,
        "/healthz,/readyz,/livez",
        "Paths that the TLS port serves to any client. A path that ends in /* includes all paths below.",
    ),
    ("logging-format", click.Choice(["text", "json"]), "text", "The format of the log."),
    ("v", click.IntRange(min=0), 0, "How much is logged: 0, or 4 and more for debugging."),
)

FLAGS: Final[Mapping[str, Flag]] = {
    name: Flag(name, _SWITCH if kind is bool else _TEXT, text) for name, kind, _, text in _OPTIONS
}


class ManagerCommand(click.Command):
    """A click command that parses flags as Go programs do."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate the arguments from Go's notation, and parse them as click does."""
        return super().parse_args(ctx, as_click(args, FLAGS))


def _parameters() -> list[click.Parameter]:
    made: list[click.Parameter] = []
    for name, kind, default, text in _OPTIONS:
        names = [f"--{name}", name.replace("-", "_")] if len(name) > 1 else [f"--{name}", f"-{name}", name]
        shown = {"default": default, "show_default": default != "", "help": text}
        if kind is Duration:
            made.append(click.Option(names, type=str, callback=_duration, metavar=Duration.NOTATION, **shown))
        else:
            made.append(click.Option(names, type=kind, **shown))
    return made


def enabled(text: str) -> frozenset[str]:
    """Return the controllers that the value of ``--controllers`` enables. Raise ConfigError for unknown names, or if
    none is enabled."""
    from kubeproxy.controllers.manager.manager import CONTROLLERS

    on: set[str] = set()
    off: set[str] = set()
    everything = False
    for part in filter(None, (part.strip() for part in text.split(","))):
        if part == "*":
            everything = True
            continue
        name = part.removeprefix("-")
        known = name.removesuffix(_SUFFIX)
        known = _ALIASES.get(name, _ALIASES.get(known, known))
        if known not in CONTROLLERS:
            raise ConfigError(
                f"--controllers: found {name!r}; allowed: * and {', '.join(CONTROLLERS)}, each with or without -"
            )
        (off if part.startswith("-") else on).add(known)
    chosen = frozenset((set(CONTROLLERS) if everything else on) - off)
    if not chosen:
        raise ConfigError(f"--controllers: found {text!r}, which names none; allowed: * or at least one controller")
    return chosen


def _run(**given: Any) -> int:
    from kubeproxy.controllers.manager.process import run
    from kubeproxy.kubernetes.client.credentials import ClientSettings
    from kubeproxy.observability.logs import setup as logging
    from kubeproxy.runtime.sd_notify import own_notifier

    chosen = enabled(given["controllers"])
    settings = settings_of(given, chosen)
    logging.configure(verbosity=given["v"], fmt=given["logging_format"])
    client = ClientSettings(
        kubeconfig=given["kubeconfig"], master=given["master"], qps=given["kube_api_qps"], burst=given["kube_api_burst"]
    )
    return run(settings, client, _serving(given), own_notifier())


def _serving(given: Mapping[str, Any]) -> Any:
    from kubeproxy.controllers.manager.process import Serving
    from kubeproxy.observability.http.tls import TlsFiles

    paths = [path for path in map(str.strip, given["authorization_always_allow_paths"].split(",")) if path]
    for path in paths:
        if not path.startswith("/"):
            raise ConfigError(f"--authorization-always-allow-paths: found {path!r}; allowed: paths that begin with /")
    return Serving(
        address=given["address"],
        port=given["port"],
        secure_address=given["bind_address"],
        secure_port=given["secure_port"],
        files=TlsFiles(
            certificate=given["tls_cert_file"], key=given["tls_private_key_file"], client_ca=given["client_ca_file"]
        ),
        always_allowed=frozenset(paths),
    )


def settings_of(given: Mapping[str, Any], chosen: frozenset[str]) -> Any:
    """Return the settings of a manager that runs the controllers `chosen`. Raise ConfigError for invalid flags."""
    from kubeproxy.controllers.manager.manager import (
        DEPLOYMENT,
        LEASE,
        READINESS,
        READINESS_LEASE,
        REPLICASET,
        REPLICATIONCONTROLLER,
        ManagerSettings,
    )
    from kubeproxy.kubernetes.controller.election_state import LeaderElection
    from kubeproxy.kubernetes.controller.leader_election import LeaseName

    name = (READINESS_LEASE if chosen == {READINESS} else LEASE).name
    identity = f"{socket.gethostname()}_{uuid4()}"
    durations = {
        "lease_s": given["leader_elect_lease_duration"].seconds,
        "renew_s": given["leader_elect_renew_deadline"].seconds,
        "retry_s": given["leader_elect_retry_period"].seconds,
    }
    try:
        LeaderElection(identity, **durations)
    except ValueError as error:
        raise ConfigError(f"--leader-elect-*: {error}") from error
    return ManagerSettings(
        identity=identity,
        controllers=chosen,
        workers={
            DEPLOYMENT: given["concurrent_deployment_syncs"],
            REPLICASET: given["concurrent_replicaset_syncs"],
            REPLICATIONCONTROLLER: given["concurrent_rc_syncs"],
            READINESS: given["concurrent_readiness_syncs"],
        },
        resync_s=given["min_resync_period"].seconds,
        leader_elect=given["leader_elect"],
        lease=LeaseName(given["leader_elect_resource_namespace"], given["leader_elect_resource_name"] or name),
        require_exclusive=given["require_exclusive"],
        **durations,
    )


controller_manager = ManagerCommand(
    "controller-manager",
    callback=_run,
    params=_parameters(),
    short_help="Keep Deployments, ReplicaSets, ReplicationControllers, readiness gates.",
    help="Keep Deployments, ReplicaSets and ReplicationControllers of a cluster, in place of these three controllers of"
    " kube-controller-manager; never run both for the same cluster. With --controllers=readiness it only opens the"
    " readiness gates kubeproxy/in-use, beside kube-controller-manager.\n\n"
    "Flags have kube-controller-manager's names. SIGTERM or SIGINT ends it; a Lease that is lost ends it with exit"
    " status 1, so that it is started again.",
)
