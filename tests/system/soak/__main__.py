"""Run the soak and print its report; status 1 when something is unexplained.

``python -m tests.system.soak [--seconds 1800] [--seed N] [--netfilter iptables] [--userspace]``
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

from tests.system.soak.run import soak


def main() -> int:
    """The exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.system.soak")
    parser.add_argument("--seconds", type=float, default=1800.0)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    parser.add_argument("--netfilter", choices=("nftables", "iptables"), default="nftables")
    parser.add_argument("--logs", type=Path, help="leave the daemons' logs in this directory")
    parser.add_argument("--userspace", action="store_true", help="the userspace path alone; so it is with iptables")
    options = parser.parse_args()
    both_paths = options.netfilter == "nftables" and not options.userspace
    print(f"soak: SOAK_SEED={options.seed}, {options.seconds:g} s", flush=True)
    report = soak(
        seed=options.seed,
        seconds=options.seconds,
        netfilter=options.netfilter,
        both_paths=both_paths,
        logs=options.logs,
    )
    print(report.text())
    return 0 if report.good else 1


if __name__ == "__main__":
    sys.exit(main())
