"""Generates docs/kubeproxy.8, the manual page, from the commands and the table of flags.

``python -m docs.generators.manual_page > docs/kubeproxy.8``
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from inspect import cleandoc
from typing import Final

import click

from kubeproxy.cli.go_flags import GoCommand, grouped, usage
from kubeproxy.cli.main import Commands, commands
from kubeproxy.model.version import __version__

_HEAD: Final = rf"""
.\" Generated: python -m docs.generators.manual_page > docs/kubeproxy.8
.TH KUBEPROXY 8 2026-11-21 "kubeproxy {__version__}" "System administration"
.SH NAME
kubeproxy \- a service proxy for Linux nodes
.SH SYNOPSIS
"""

_DESCRIPTION: Final = r"""
.SH DESCRIPTION
.B kubeproxy
watches Services and their endpoints in a Kubernetes API server or in manifest files.
For each service port it opens a listening socket, has the kernel's packet filter (nftables or iptables) redirect the
service's addresses to it, and splices TCP connections and UDP sessions to endpoints, chosen in turn or by the client's
address.
If an endpoint does not answer, it dials another one for the client.
.PP
It takes the flags and the configuration file of
.BR kube-proxy ,
and can replace it;
.B kube-proxy
is installed as another name of
.BR "kubeproxy run" .
.SH COMMANDS
"""

_REST: Final = r"""
.SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
Drain open connections, for at most
.BR \-\-shutdown\-grace ,
and end.
New clients are served until shortly before the end; then their first packets are dropped for 30 seconds, so that their
retransmissions reach the next process.
A second signal ends the process at once.
.TP
.B SIGHUP
Read the configuration and the manifests again.
A faulty configuration is refused, and the old one stays in effect.
.TP
.B SIGUSR2
Re-execute the program on disk under the same process ID.
The workers continue to serve until the new rules are in effect.
Refused if the new program does not accept the configuration, and with
.BR \-\-workers=0 .
.PP
A new process takes over from one that serves on the same host without losing a connection.
.SH FILES
.TP
.I /etc/kubeproxy/config.yaml
The configuration, for the systemd unit.
.TP
.I /etc/kubeproxy/manifests/
Services and EndpointSlices, for the configuration that is installed with it.
.TP
.I /etc/kubeproxy/environment
.BR KUBEPROXY_OPTIONS ,
further flags, for the systemd unit.
.TP
.I /run/xtables.lock
The lock of the iptables tables, shared with
.BR iptables (8).
.PP
The table
.I inet kubeproxy
of nftables, or the chains
.I KUBE\-*
of iptables, and routing table 27504 belong to it; it changes no other tables.
.SH ENVIRONMENT
.TP
.BR KUBERNETES_SERVICE_HOST ", " KUBERNETES_SERVICE_PORT
Address of the API server, in a pod.
.TP
.BR NOTIFY_SOCKET ", " WATCHDOG_USEC ", " JOURNAL_STREAM
Of
.BR systemd (1):
for notice of readiness, the watchdog, and log lines with priorities.
.TP
.BR NO_COLOR ", " TERM
Whether output to a terminal has colours.
.TP
.BR http_proxy ", " https_proxy ", " no_proxy
Proxies for manifests from URLs.
.TP
.B KUBECONFIG
The kubeconfigs of
.BR "kubeproxy create" " and " "kubeproxy rolling\-update" ,
separated by colons; else
.IR ~/.kube/config .
.TP
.BR KUBE_EDITOR ", " EDITOR
The editor of
.BR "kubeproxy create \-\-edit" .
.TP
.B XDG_CACHE_HOME
Where
.B kubeproxy create
keeps what a server serves; else
.IR ~/.cache .
.TP
.B XTABLES_LOCKFILE
Another path of that lock.
.SH EXIT STATUS
.TP
.B 0
Done; for
.BR "kubeproxy status" ,
the daemon is healthy.
.TP
.B 1
Failed; one line on standard error says why. For
.B kubeproxy status
and
.BR "kubeproxy healthcheck" ,
also: the daemon is not healthy, or cannot be reached; for
.BR "kubeproxy create" " and " "kubeproxy rolling\-update" ,
as for
.BR kubectl ,
every error, that of the command line among them.
.TP
.B 64
The configuration, a manifest or the command line is wrong.
Each fault is one line on standard error; nothing was changed.
.TP
.B 130
Interrupted.
.SH EXAMPLES
.TP
Serve the manifests in a directory and follow every change:
.B kubeproxy run \-\-manifests /etc/kubeproxy/manifests
.TP
As kube\-proxy on a node:
.B kubeproxy run \-\-config /var/lib/kube\-proxy/config.conf \-\-hostname\-override node\-1
.TP
Find ejected endpoints, and the endpoint for the next client:
.B kubeproxy status
.br
.B kubeproxy trace 10.96.0.10:80
.TP
Create what is in a directory, whatever of it is there already:
.B kubeproxy create \-f manifests/ \-R \-\-sort \-\-skip\-existing
.TP
Replace a ReplicationController's pods by others with a new image, at most two more at a time:
.B kubeproxy rolling\-update web \-\-image=web:2 \-\-max\-surge=2
.SH SEE ALSO
.BR nft (8),
.BR iptables (8),
.BR conntrack (8),
.BR systemctl (1)
.PP
The directory
.I docs
of the source describes every setting, installation, operation and migration.
"""


def render() -> str:
    """The manual page."""
    context = click.Context(commands, info_name="kubeproxy")
    assert isinstance(commands, Commands)
    found = list(each(commands, context))
    lines = [_HEAD.strip(), *(line for command in found for line in _synopsis(command)), _DESCRIPTION.strip()]
    for command in found:
        lines += _command(command)
    run = next(command for command in found if isinstance(command, GoCommand))
    lines += _settings(run)
    return "\n".join([*lines, _REST.strip(), ""])


def each(group: click.Group, context: click.Context, prefix: str = "") -> Iterator[click.Command]:
    """Every command, those of a group by the group's name and their own."""
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        if isinstance(command, click.Group):
            yield from each(command, context, f"{prefix}{name} ")
        elif command is not None:
            named = copy(command)
            named.name = prefix + name
            yield named


def _synopsis(command: click.Command) -> Iterator[str]:
    if command.name != "run":
        yield ".br"
    yield f".B kubeproxy {command.name}"
    words = [
        "[\\fIflag\\fR ...]"
        if isinstance(command, GoCommand)
        else " ".join([*(f"[{_usage(option)}]" for option in _options(command)), *_arguments(command)])
    ]
    yield from (word for word in words if word)


def _command(command: click.Command) -> Iterator[str]:
    yield ".TP"
    yield f".B {command.name}"
    for place, paragraph in enumerate(cleandoc(command.help or "").split("\n\n")):
        if place:
            yield ".IP"
        if paragraph.startswith("\b\n"):
            yield from (line for row in paragraph.splitlines()[1:] for line in (f".B {_text(row.strip())}", ".br"))
        else:
            yield _text(" ".join(paragraph.split()))
    if isinstance(command, GoCommand):
        return
    for option in _options(command):
        yield ".RS"
        yield ".TP"
        yield _usage(option)
        yield _text(option.help or "")
        yield ".RE"


def _settings(run: GoCommand) -> Iterator[str]:
    yield ".SH FLAGS"
    yield "Of \\fBkubeproxy run\\fR; \\fBkubeproxy check\\fR takes \\-\\-config and the settings."
    yield "Defaults are in brackets."
    sections, without_effect = grouped(run.flags)
    for heading, flags in sections.items():
        yield f".SS {_text(heading)}"
        for flag, text in flags:
            yield ".TP"
            yield f"\\fB{_text(usage(flag))}\\fR"
            yield _text(text)
    yield ".SS Accepted for compatibility with kube\\-proxy, without effect"
    yield _text(", ".join(without_effect)) + "."


def _options(command: click.Command) -> list[click.Option]:
    return [parameter for parameter in command.params if isinstance(parameter, click.Option)]


def _arguments(command: click.Command) -> Iterator[str]:
    for parameter in command.params:
        if isinstance(parameter, click.Argument):
            name = parameter.metavar or (parameter.name or "").upper()
            yield f"\\fI{name}\\fR" if parameter.required else f"[\\fI{name}\\fR]"


def _usage(option: click.Option) -> str:
    name = f"\\fB{_text(max(option.opts, key=len))}\\fR"
    if option.is_flag:
        return name
    kind = option.type
    value = "|".join(kind.choices) if isinstance(kind, click.Choice) else option.metavar or "VALUE"
    return f"{name} \\fI{value}\\fR"


def _text(text: str) -> str:
    """The text escaped for roff: hyphens stay hyphens, and no line becomes a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("`", '"')
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(render())
