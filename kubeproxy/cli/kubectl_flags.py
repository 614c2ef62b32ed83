"""A click command that parses flags as kubectl does, and like kubectl exits with status 1 after any error."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem

from kubeproxy.model.errors import ConfigError
from kubeproxy.runtime.output import echo

_Command = TypeVar("_Command", bound=Callable[..., Any])

FAILED: Final = 1
RECORDED: Final = "kubeproxy.recorded"
"""The key in the click context's ``meta`` of the given flags, which have their long names."""
_SECRET: Final = frozenset({"--token", "--password"})
_TRUE: Final = frozenset({"true", "t", "1", "TRUE", "True", "T"})
_FALSE: Final = frozenset({"false", "f", "0", "FALSE", "False", "F"})


class KubectlCommand(click.Command):
    """A click command with kubectl's flag syntax: ``_`` in flags means ``-``, switches accept ``=true`` and ``=false``,
    and ``-f=x`` means ``-f x``."""

    def __init__(self, *args: Any, bare: Mapping[str, str] | None = None, **kwargs: Any) -> None:
        """`bare` has the values of flags that are given without a value, by flag."""
        super().__init__(*args, **kwargs)
        self._bare = dict(bare or {})

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        """Make click's context. If the command line is wrong, print the error and exit with status 1."""
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.NoSuchOption as error:
            message = f"unknown flag: {error.option_name}"
        except click.UsageError as error:
            message = error.format_message()
        command = f"{parent.command_path} {info_name}" if parent is not None else str(info_name)
        echo(f"error: {message}", f"See '{command} --help' for usage.", err=True)
        raise click.exceptions.Exit(FAILED)

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate the arguments from kubectl's syntax, and parse them as click does. For shell completion, do not
        translate them."""
        if ctx.resilient_parsing:
            return super().parse_args(ctx, args)
        translated = list(self._translated(args))
        ctx.meta[RECORDED] = [
            text for text in translated if text.startswith("--") and text.partition("=")[0] not in _SECRET
        ]
        return super().parse_args(ctx, [text for text in translated if not text.endswith("\0")])

    def _translated(self, args: Sequence[str]) -> Iterator[str]:
        """Yield ``--long=value`` for each flag, and other arguments unchanged. A switch with the value false is only
        recorded."""
        by_name = {name: option for option in self.params if isinstance(option, click.Option) for name in option.opts}
        rest = iter(args)
        for arg in rest:
            if arg == "--":
                yield arg
                yield from rest
                return
            name, value = _split(arg, by_name)
            option = by_name.get(name)
            if option is None:
                yield arg
                continue
            long = max(option.opts, key=len)
            if option.is_flag:
                if value is not None and value not in _TRUE | _FALSE:
                    raise click.UsageError(f'invalid argument "{value}" for "{long}" flag: allowed: true or false')
                if value in (None, *_TRUE):
                    yield long
                else:
                    yield option.secondary_opts[0] if option.secondary_opts else f"{long}=false\0"
            elif value is not None:
                yield f"{long}={value}"
            elif long in self._bare:
                yield f"{long}={self._bare[long]}"
            elif (following := next(rest, None)) is not None:
                yield f"{long}={following}"
            else:
                raise click.UsageError(f"flag needs an argument: {name}")


def _split(arg: str, known: Mapping[str, click.Option]) -> tuple[str, str | None]:
    """Split an argument into a flag's name and value. The value is None if it is not part of the argument."""
    if arg.startswith("--"):
        name, equals, value = arg.partition("=")
        return name.replace("_", "-"), value if equals else None
    if arg.startswith("-") and len(arg) > 1:
        option = known.get(arg[:2])
        if option is not None and len(arg) > 2:
            if option.is_flag and not arg[2:].startswith("="):
                return arg, None  # click itself parses combined switches.
            return arg[:2], arg[2:].removeprefix("=")
    return arg, None


def filename_option(text: str) -> Callable[[_Command], _Command]:
    """Return the option ``-f`` for manifests, with `text` as its help."""
    return click.option(
        "--filename",
        "-f",
        metavar="FILE",
        multiple=True,
        shell_complete=complete_files(".json", ".yaml", ".yml"),
        help=text,
    )


def refused(error: ConfigError) -> int:
    """Print the faults of the command line, and return the exit status."""
    for fault in error.faults:
        echo(*f"error: {fault}".split("\n"), err=True)
    return FAILED


def complete_files(*suffixes: str) -> Callable[[click.Context, click.Parameter, str], list[CompletionItem]]:
    """Return a function for shell completion of file names with these suffixes, and of directories."""

    def complete(ctx: click.Context, parameter: click.Parameter, incomplete: str) -> list[CompletionItem]:
        import os

        directory, _, beginning = incomplete.rpartition("/")
        prefix = f"{directory}/" if "/" in incomplete else ""
        try:
            names = sorted(os.listdir(prefix or "."))
        except OSError:
            return []
        found = []
        for name in names:
            path = prefix + name
            if not name.startswith(beginning) or (name.startswith(".") and not beginning.startswith(".")):
                continue
            if os.path.isdir(path):
                found.append(CompletionItem(f"{path}/", type="plain"))
            elif name.endswith(suffixes):
                found.append(CompletionItem(path, type="plain"))
        return found

    return complete
