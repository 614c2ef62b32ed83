"""A click command that parses flags as Go programs do, so that kube-proxy's command lines work."""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Final

import click

from kubeproxy.config.describe import notation, text_of
from kubeproxy.config.field_info import Effect
from kubeproxy.config.fields import fields
from kubeproxy.config.flags import ACTIONS, Flag
from kubeproxy.config.flags import flags as table

_LONGEST_WORD = 40

FlagTexts = Mapping[str, Sequence[str]]
"""The texts of each given flag, in their order, by flag name."""


class GoCommand(click.Command):
    """A click command with a table of flags. It calls `action` with the texts of the given flags."""

    def __init__(
        self, name: str, flags: Mapping[str, Flag], action: Callable[[FlagTexts], int], *, short: str, text: str
    ) -> None:
        options: list[click.Parameter] = [_option(flag) for flag in flags.values()]
        super().__init__(name, callback=self._call, params=options, help=f"{short}\n\n{text}", short_help=short)
        self.flags = flags
        self._action = action

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Translate the arguments from Go's notation, and parse them as click does."""
        return super().parse_args(ctx, as_click(args, self.flags))

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the flags, grouped by headings, to the help. Only the names of flags without effect are listed."""
        sections, without_effect = grouped(self.flags)
        for heading, entries in sections.items():
            with formatter.section(heading):
                formatter.write_dl([(usage(flag), text) for flag, text in entries], col_max=34)
        with formatter.section("Accepted for compatibility with kube-proxy, without effect"):
            # write_text is not used, because it breaks lines at hyphens, so that flags could not be searched for or
            # copied.
            width = formatter.width - formatter.current_indent
            for line in textwrap.wrap(", ".join(without_effect), width, break_on_hyphens=False):
                formatter.write(f"{'':>{formatter.current_indent}}{line}\n")

    def _call(self, **given: tuple[str, ...]) -> int:
        return self._action({name: texts for name in self.flags if (texts := given[_parameter(name)])})


def as_click(args: Sequence[str], flags: Mapping[str, Flag]) -> list[str]:
    """Translate a command line from Go's notation to click's.

    ``_`` in names becomes ``-``, ``--switch`` becomes ``--switch=true``, and ``-v=2`` becomes ``--v=2``. The argument
    after a flag that needs a value is the value, even if it begins with a dash. Unknown flags are not changed, so that
    click reports them.
    """
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


_ACTIONS: Final = "Actions"
_OVERRIDES: Final = "Settings that override the file"
_LOGGING: Final = "Logging (these override the file, too)"
_IGNORED_WITH_FILE: Final = "Settings of kube-proxy (ignored with --config)"


def grouped(flags: Mapping[str, Flag]) -> tuple[dict[str, list[tuple[Flag, str]]], list[str]]:
    """Return the flags by heading, each with its help text, and the names of the flags without effect."""
    sections: dict[str, list[tuple[Flag, str]]] = {
        name: [] for name in (_ACTIONS, _OVERRIDES, _LOGGING, _IGNORED_WITH_FILE)
    }
    without_effect = []
    for flag in flags.values():
        field = fields().get(flag.path)
        if flag.ignored or (field is not None and field.effect is Effect.NONE):
            without_effect.append(flag.dashed)
            continue
        default = text_of(field.default) if field is not None and field.flag == flag.name else ""
        if len(default) > _LONGEST_WORD:
            default = default.replace(",", ", ")  # Insert spaces, because a long word would be wider than a terminal.
        sections[_heading(flag)].append((flag, flag.text + (f"  [{default}]" if default else "")))
    return sections, without_effect


def _heading(flag: Flag) -> str:
    if flag in ACTIONS or flag.name not in table():
        return _ACTIONS
    if flag.path.startswith("logging."):
        return _LOGGING
    return _OVERRIDES if flag.overrides_file else _IGNORED_WITH_FILE


def usage(flag: Flag) -> str:
    """Return the flag with the notation of its value, for help."""
    return f"{flag.dashed}[={notation(flag.kind)}]" if flag.switch else f"{flag.dashed} {notation(flag.kind)}"
