"""A command that takes its flags as Go programs do, so that kube-proxy's command lines go on working."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import click

from kubeproxy.config.describe import notation, text_of
from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import fields
from kubeproxy.config.flags import ACTIONS, Flag

_LONGEST_WORD = 40

Given = Mapping[str, Sequence[str]]
"""The texts given for each flag, by its name, in their order."""


class GoCommand(click.Command):
    """A click command with a table of flags; `action` is called with what was given."""

    def __init__(
        self, name: str, flags: Mapping[str, Flag], action: Callable[[Given], int], *, short: str, text: str
    ) -> None:
        options: list[click.Parameter] = [_option(flag) for flag in flags.values()]
        super().__init__(name, callback=self._call, params=options, help=f"{short}\n\n{text}", short_help=short)
        self.flags = flags
        self._action = action

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does, after the translation."""
        return super().parse_args(ctx, as_click(args, self.flags))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """The flags under headings; those without effect by name only."""
        sections, without_effect = headed(self.flags)
        for heading, entries in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(usage(flag), text) for flag, text in entries], col_max=34)
        with formatter.section("Accepted for kube-proxy's sake, without effect here"):
            # Not write_text, which breaks lines at hyphens: nobody could search for a flag or copy it.
            width = formatter.width - formatter.current_indent
            for line in textwrap.wrap(", ".join(without_effect), width, break_on_hyphens=False):
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def _call(self, **given: tuple[str, ...]) -> int:
        return self._action({name: texts for name in self.flags if (texts := given[_parameter(name)])})


def as_click(args: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """A Go command line as click reads it: ``_`` in names is ``-``, ``--switch`` alone is ``--switch=true``, ``-v=2``
    is ``--v=2``, and what follows a flag that takes a value is its value, whatever it looks like. What is no flag of
    ours stays as it is: click has words for that."""
    return list(_translate(iter(args), flags))


def _translate(args: Iterator[str], flags: Mapping[str, Flag]) -> Iterator[str]:
    for arg in args:
        if arg == "--":
            yield arg
            yield from args
            return
        name, equals, value = arg.lstrip("-").partition("=")
        dashes = len(arg) - len(arg.lstrip("-"))
        flag = flags.get(name.replace("_", "-"))
        if flag is None or not (dashes == 2 or (dashes == 1 and len(name) == 1)):
            yield arg
        elif equals:
            yield f"--{flag.name}={value}"
        elif flag.switch:
            yield f"--{flag.name}=true"
        elif (following := next(args, None)) is not None:
            yield f"--{flag.name}={following}"
        else:
            yield f"--{flag.name}"


def _option(flag: Flag) -> click.Option:
    names = [f"--{flag.name}"] if len(flag.name) > 1 else [f"--{flag.name}", f"-{flag.name}"]
    return click.Option([*names, _parameter(flag.name)], type=str, multiple=True)


def _parameter(name: str) -> str:
    return name.replace("-", "_")


_ACTIONS: Final = "What to do"
_WINNERS: Final = "Settings that win over the file"
_LOGGING: Final = "Logging (these win over the file, too)"
_BEATEN: Final = "Settings of kube-proxy (with --config they do not count)"


def headed(flags: Mapping[str, Flag]) -> tuple[dict[str, list[tuple[Flag, str]]], list[str]]:
    """The flags under headings, each with what is said of it, and those without effect as they are typed."""
    sections: dict[str, list[tuple[Flag, str]]] = {name: [] for name in (_ACTIONS, _WINNERS, _LOGGING, _BEATEN)}
    without_effect = []
    for flag in flags.values():
        field = fields().get(flag.path)
        if flag.ignored or (field is not None and field.effect is Effect.NONE):
            without_effect.append(flag.dashed)
            continue
        default = text_of(field.default) if field is not None and field.flag == flag.name else ""
        if len(default) > _LONGEST_WORD:
            default = default.replace(",", ", ")  # a word without a blank would be wider than a terminal
        sections[_heading(flag)].append((flag, flag.text + (f"  [{default}]" if default else "")))
    return sections, without_effect


def _heading(flag: Flag) -> str:
    if flag in ACTIONS:
        return _ACTIONS
    if flag.path.startswith("logging."):
        return _LOGGING
    return _WINNERS if flag.wins else _BEATEN


def usage(flag: Flag) -> str:
    """How it is given."""
    return f"{flag.dashed}[={notation(flag.kind)}]" if flag.switch else f"{flag.dashed} {notation(flag.kind)}"
