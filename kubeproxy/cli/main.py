"""The list of commands, and the handling of their errors, which are printed to stderr, one line for each fault."""

from __future__ import annotations

import io
import os
import re
import sys
from collections.abc import Iterable, Sequence
from difflib import SequenceMatcher
from importlib import import_module
from typing import Final

import click

from kubeproxy.model.errors import ConfigError, KubeproxyError
from kubeproxy.model.version import __version__
from kubeproxy.runtime import compiled
from kubeproxy.runtime.output import echo

NAMES: Final = (
    *(
        "run",
        "check",
        "status",
        "trace",
        "connectivity-test",
        "bugreport",
        "endpoint",
        "drain-wait",
        "retry",
        "cleanup",
        "healthcheck",
    ),
    *("create", "rolling-update", "controller-manager", "rollout", "completion", "version"),
)
"""The commands. Each command is a function in the module of the same name."""
INTERRUPTED = 130
"""128 + SIGINT, as in shells."""
LIKE: Final = 0.7
"""The least similarity, between 0 and 1, of an option that is suggested for a mistyped option."""
SPREAD: Final = 0.15
"""The largest difference in similarity between the best suggestion and a further one."""


class Commands(click.Group):
    """The group of all commands. It imports a command's module only when the command runs, so that every command starts
    fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the commands in the order of the help text."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return the command with this name, or None."""
        name = "rolling-update" if cmd_name == "rollingupdate" else cmd_name
        if name == "version":
            return version
        if name not in NAMES:
            return None
        word = name.replace("-", "_")
        command: click.Command = getattr(import_module(f"kubeproxy.cli.{word}"), word)
        return command

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Parse the arguments. ``help COMMAND`` means ``COMMAND --help``."""
        return super().parse_args(ctx, [*args[1:], "--help"] if args[:1] == ["help"] else args)

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command as click does. For a mistyped name, the error suggests a command."""
        name = args[0]
        if not name.startswith("-") and self.get_command(ctx, name) is None:
            raise click.NoSuchCommand(name, possibilities=self.list_commands(ctx), ctx=ctx)
        return super().resolve_command(ctx, args)


@click.group(
    cls=Commands,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="Exit status: 0 done; 64 the configuration, a manifest or the command line is wrong; 1 anything else.\n\n"
    "`kubeproxy COMMAND --help` describes a command; kubeproxy(8) and docs/ describe everything.",
)
@click.version_option(__version__, prog_name="kubeproxy", message="%(prog)s %(version)s")
def commands() -> None:
    """A service proxy for Linux nodes: it connects clients of Services to endpoints that answer.

    It takes kube-proxy's flags and configuration file and can replace it.
    """


@click.command()
def version() -> int:
    """Print the version, and whether the byte path is compiled."""
    echo(f"kubeproxy {__version__}")
    echo(f"byte path: {compiled.form()}")
    return 0


def main() -> None:
    """Run the console script ``kubeproxy``."""
    _open_standard_streams()
    sys.exit(status_of(sys.argv[1:]))


def main_run() -> None:
    """Run the console script ``kube-proxy``, which does the same as ``kubeproxy run``."""
    _open_standard_streams()
    sys.exit(status_of(["run", *sys.argv[1:]]))


def _open_standard_streams() -> None:
    """Open standard streams that are closed (``2>&-``), because otherwise sockets would get their numbers, here and in
    workers."""
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= 2:
        os.set_inheritable(descriptor, True)
    os.close(descriptor)
    sys.stdin = sys.stdin or os.fdopen(0, closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", closefd=False)
    for stream in (sys.stdout, sys.stderr):
        # Write ? for characters that the terminal's encoding lacks.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")


def status_of(args: Sequence[str]) -> int:
    """Run a command line, print its errors, and return its exit status."""
    try:
        result = commands.main(list(args), prog_name="kubeproxy", standalone_mode=False)
        sys.stdout.flush()
    except click.Abort:
        return INTERRUPTED
    except click.exceptions.NoArgsIsHelpError as error:
        return _fail(*error.format_message().split("\n"), status=ConfigError.EXIT_STATUS)
    except click.ClickException as error:
        return _fail(*_of_click(error).split("\n"), status=ConfigError.EXIT_STATUS)
    except ConfigError as error:
        return _fail(*map(_prefixed, error.faults), status=ConfigError.EXIT_STATUS)
    except KubeproxyError as error:
        return _fail(f"kubeproxy: {error}", status=1)
    except BrokenPipeError:
        # The reader of the output has closed the pipe. Without this, Python would report that again when it flushes at
        # exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    return result if isinstance(result, int) else 0


def _prefixed(fault: str) -> str:
    """Put the program's name before a fault, unless it begins with a file and a line."""
    return fault if re.match(r"[^:]+:\d+: ", fault) else f"kubeproxy: {fault}"


def _of_click(error: click.ClickException) -> str:
    context = error.ctx if isinstance(error, click.UsageError) else None
    path = context.command_path if context else "kubeproxy"
    message = error.format_message()
    if isinstance(error, click.NoSuchOption) and context is not None:
        meant = nearest_options(error.option_name, context.command.params)
        message = f"{error.message} Did you mean {' or '.join(map(repr, meant))}?" if meant else error.message
    return f"{path}: {message} (see {path} --help)"


def nearest_options(typed: str, parameters: Iterable[click.Parameter]) -> list[str]:
    """Return the options that were probably meant, the most similar option first.

    The typed text is compared with the beginning of each option. click compares whole names, and would suggest
    ``--drain-reports`` for ``--nod-port``.
    """

    def likeness(option: str) -> float:
        word, name = typed.removeprefix("--"), option.removeprefix("--")
        return max(SequenceMatcher(None, word, part).ratio() for part in (name, name[: len(word) + 1]))

    options = [
        name
        for parameter in parameters
        if not getattr(parameter, "hidden", False)
        for name in parameter.opts
        if name[:2] == "--"
    ]
    near = sorted(((likeness(option), option) for option in options), key=lambda pair: (-pair[0], pair[1]))
    least = max(LIKE, near[0][0] - SPREAD) if near else LIKE
    return [option for like, option in near if like >= least][:2]


def _fail(*lines: str, status: int) -> int:
    echo(*lines, err=True)
    return status
