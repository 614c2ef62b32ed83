"""kubectl's flags for the API server and the credentials, which all commands that use an API server have."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

import click

from kubeproxy.cli.kubectl_flags import complete_files
from kubeproxy.model.errors import ConfigError

Command = TypeVar("Command", bound=Callable[..., Any])

_UNITS: Final = {"ns": 1e-9, "us": 1e-6, "µs": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0}
_PARTS: Final = re.compile(r"(\d{1,18}(?:\.\d{1,18})?)(ns|us|µs|ms|s|m|h)")

_TEXTS: Final = (
    ("--kubeconfig", "FILE", "The kubeconfig to use.  [$KUBECONFIG, ~/.kube/config]"),
    ("--context", "NAME", "The kubeconfig's context to use."),
    ("--cluster", "NAME", "The kubeconfig's cluster to use."),
    ("--user", "NAME", "The kubeconfig's user to use."),
    ("--token", "TOKEN", "The bearer token to authenticate with."),
    ("--username", "NAME", "The user of basic authentication."),
    ("--password", "PASSWORD", "The password of basic authentication."),
    ("--client-certificate", "FILE", "A client certificate for TLS."),
    ("--client-key", "FILE", "The key of the client certificate."),
    ("--certificate-authority", "FILE", "The certificate of the server's authority."),
    ("--tls-server-name", "NAME", "The name that the server's certificate has to have."),
    ("--as-uid", "UID", "The UID to act as."),
    ("--cache-dir", "DIRECTORY", "Where discovery is cached.  [$XDG_CACHE_HOME/kubeproxy, ~/.cache/kubeproxy]"),
)


def client_flags(command: Command) -> Command:
    """Add the flags to a click command. The command's function passes them to `overrides`."""
    options = [
        click.option("--namespace", "-n", metavar="NAME", default="", help="The namespace of all objects."),
        click.option("--server", "-s", metavar="URL", default="", help="The address of the API server."),
        *(_text_option(name, metavar, text) for name, metavar, text in _TEXTS),
        click.option("--as", "impersonate", metavar="USER", default="", help="The user to act as."),
        click.option("--as-group", metavar="GROUP", multiple=True, help="A group to act as. May be repeated."),
        click.option(
            "--insecure-skip-tls-verify", is_flag=True, help="Accept any certificate of the server. This is not secure."
        ),
        click.option(
            "--request-timeout",
            metavar="DURATION",
            default="0",
            help="How long a single request may take, like 10s; 0: 75s.",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def _text_option(name: str, metavar: str, text: str) -> Callable[[Command], Command]:
    complete = complete_files("") if metavar == "FILE" else None
    return click.option(name, metavar=metavar, default="", help=text, shell_complete=complete)


def overrides(given: Mapping[str, Any]) -> Any:
    """Return the flags as `Overrides`."""
    from kubeproxy.kubernetes.client.kubeconfig import Overrides

    names = (
        *("kubeconfig", "context", "cluster", "user", "namespace", "server", "token", "username", "password"),
        *("client_certificate", "client_key", "certificate_authority", "tls_server_name", "insecure_skip_tls_verify"),
        "impersonate",
    )
    return Overrides(
        **{name: given[name] for name in names},
        impersonate_groups=given["as_group"],
        impersonate_uid=given["as_uid"],
    )


def seconds(text: str, flag: str) -> float:
    """Parse a duration in Go's notation, such as ``1m30s``, or a number of seconds. Raise ConfigError if the text is
    neither."""
    if re.fullmatch(r"\d{1,9}", text):
        return float(text)
    parts = _PARTS.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        raise ConfigError(f"{flag}: found {text!r}; allowed: a duration like 30s or 1m30s")
    return sum(float(number) * _UNITS[unit] for number, unit in parts)
