"""docs/kubeproxy.8, the manual page, from the commands and the table of flags:
``python -m docs.generators.manual_page > docs/kubeproxy.8``."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from copy import copy
from typing import Final

import click

from kubeproxy.cli.go_flags import GoCommand, headed, usage
from kubeproxy.cli.main import Commands, commands
from kubeproxy.model.version import __version__

_HEAD: Final = rf"""
.\" Generated: python -m docs.generators.manual_page > docs/kubeproxy.8
.TH KUBEPROXY 8 2026-11-21 "kubeproxy {__version__}" "System administration"
.SH NAME
kubeproxy \- a userspace service proxy for Linux nodes
.SH SYNOPSIS
"""

_DESCRIPTION: Final = r"""
.SH DESCRIPTION
.B kubeproxy
watches Services and their endpoints, which a Kubernetes API server or manifest files tell of.
For each service port it opens a listening socket, has the kernel's packet filter (nftables or iptables) redirect the
service's addresses to it, and splices TCP connections and UDP sessions to endpoints, chosen in turn or by the client's
address.
An endpoint that does not answer is hidden from clients: another is tried.
.PP
It takes the flags and the configuration file of
.BR kube-proxy ,
and can stand in its place;
.B kube-proxy
is installed as another name of
.BR "kubeproxy run" .
.SH COMMANDS
"""

_REST: Final = r"""
.SH SIGNALS
.TP
.BR SIGTERM ", " SIGINT
Let open connections finish, for at most
.BR \-\-shutdown\-grace ,
and end.
New clients are served until shortly before; after that their first packets are dropped for 30 seconds, so that they
find the next process by trying again.
A second one of these signals ends the process at once.
.TP
.B SIGHUP
Read the configuration and the manifests again.
A faulty configuration is refused, and the old one stays.
.TP
.B SIGUSR2
Start the program that is on disk anew, under the same process number.
The workers serve on until the new rules are in force.
Refused where the new program does not take the configuration, and with
.BR \-\-workers=0 .
.PP
A process that finds another one serving on the same host takes over from it without losing a connection.
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
of iptables, and routing table 27504 are its own; others' are not touched.
.SH ENVIRONMENT
.TP
.BR KUBERNETES_SERVICE_HOST ", " KUBERNETES_SERVICE_PORT
Where the API server is, in a pod.
.TP
.BR NOTIFY_SOCKET ", " WATCHDOG_USEC ", " JOURNAL_STREAM
Of
.BR systemd (1):
to be told of readiness, to be fed, and to take log lines with their priorities.
.TP
.BR NO_COLOR ", " TERM
Whether a terminal is written to in colours.
.TP
.BR http_proxy ", " https_proxy ", " no_proxy
How manifests from URLs are fetched.
.TP
.B XTABLES_LOCKFILE
Another place for that lock.
.SH EXIT STATUS
.TP
.B 0
Done; for
.BR "kubeproxy status" ,
the daemon is healthy.
.TP
.B 1
It could not be done, and one line on standard error says why; for
.B kubeproxy status
and
.BR "kubeproxy healthcheck" ,
also that the daemon is not healthy, or cannot be reached.
.TP
.B 64
The configuration, a manifest or the command line is wrong.
Each fault is one line on standard error; nothing has been touched.
.TP
.B 130
Interrupted.
.SH EXAMPLES
.TP
Serve what is in a directory, and follow every change:
.B kubeproxy run \-\-manifests /etc/kubeproxy/manifests
.TP
As kube\-proxy on a node:
.B kubeproxy run \-\-config /var/lib/kube\-proxy/config.conf \-\-hostname\-override node\-1
.TP
Which endpoint is ill, and who would be tried next:
.B kubeproxy status
.br
.B kubeproxy trace 10.96.0.10:80
.SH SEE ALSO
.BR nft (8),
.BR iptables (8),
.BR conntrack (8),
.BR systemctl (1)
.PP
Every setting with its field, default and meaning, how to install, operate and migrate: the directory
.I docs
of the source.
"""


def render() -> str:
    """The page."""
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
    for place, paragraph in enumerate((command.help or "").split("\n\n")):
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
    yield "What is in brackets is the default."
    sections, without_effect = headed(run.flags)
    for heading, flags in sections.items():
        yield f".SS {_text(heading)}"
        for flag, text in flags:
            yield ".TP"
            yield f"\\fB{_text(usage(flag))}\\fR"
            yield _text(text)
    yield ".SS Accepted for the sake of kube\\-proxy, without effect"
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
    """As roff has it: no hyphen that is typed becomes another character, and no line is taken for a request."""
    escaped = text.replace("\\", "\\e").replace("-", "\\-").replace("…", "...").replace("`", '"')
    return f"\\&{escaped}" if escaped.startswith((".", "'")) else escaped


if __name__ == "__main__":
    sys.stdout.write(render())
