"""`python -m tests.tools.demo`: see --help. Exit status 0 if everything held, 1 if not."""

from __future__ import annotations

import signal
import sys
import tempfile
import time
from pathlib import Path

import click

from tests.support.lab.privilege import in_user_namespace, require_hosts
from tests.tools.demo import story
from tests.tools.demo.cast import assemble


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
@click.option("--keep", is_flag=True, help="Leave it running, say how to play with it, and end with Ctrl-C.")
@click.option("--netfilter", type=click.Choice(["auto", "nftables", "iptables"]), default="auto", show_default=True)
@click.option("--data-path", type=click.Choice(["userspace", "kernel"]), default="userspace", show_default=True)
def main(keep: bool, netfilter: str, data_path: str) -> None:
    """Three backends, a Service, the real daemon and real traffic, in network namespaces of its own: the rest of the
    machine is not touched, and nothing is left behind."""
    # Ended by either signal it takes its hosts, programs and files along, in the background of a shell too.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    began = time.monotonic()
    if in_user_namespace():
        print("(as an ordinary user: root only within a user namespace of its own)")
    try:
        with tempfile.TemporaryDirectory(prefix="kubeproxy-demo-") as directory, assemble(Path(directory)) as cast:
            held = story.tell(cast, netfilter=netfilter, data_path=data_path, keep_running=keep)
    except KeyboardInterrupt:
        sys.exit(128 + signal.SIGINT)
    except AssertionError as error:
        sys.exit(f"demo: {error}")
    print(f"\n{'Everything held.' if held else 'NOT EVERYTHING HELD.'} ({time.monotonic() - began:.1f} s)")
    sys.exit(0 if held else 1)


if __name__ == "__main__":
    require_hosts("tests.tools.demo")
    main()
