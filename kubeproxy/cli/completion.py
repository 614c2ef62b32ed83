"""Implements ``kubeproxy completion``, which prints completion scripts for shells."""

from __future__ import annotations

import sys
from typing import Final

import click

from kubeproxy.runtime.output import write_data

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print a script that completes commands and flags in a shell.")
@click.argument("shell", type=click.Choice(SHELLS), metavar="bash|zsh|fish")
@click.pass_context
def completion(ctx: click.Context, shell: str) -> int:
    """Print a script that lets a shell complete commands, flags and file names.

    \b
      source <(kubeproxy completion bash)                                   # in ~/.bashrc
      source <(kubeproxy completion zsh)                                    # in ~/.zshrc, after compinit
      kubeproxy completion fish > ~/.config/fish/completions/kubeproxy.fish
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    root = ctx.find_root()
    script = kind(root.command, {}, "kubeproxy", "_KUBEPROXY_COMPLETE")
    # click's source() is not used, because it runs bash to find out the version. The script may be for another host.
    write_data(sys.stdout, script.source_template % script.source_vars() + "\n")
    return 0
