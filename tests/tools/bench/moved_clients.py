"""How many clients get another endpoint when one of N goes: ``python -m tests.tools.bench.moved_clients``."""

from __future__ import annotations

import random
import socket
from collections.abc import Callable

from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.model import Address, Balancing, Scheduler, Target

CLIENTS = 20_000
GONE = 5
"""How many endpoints go, each by itself."""


def moved(scheduler: Scheduler, count: int) -> tuple[float, float]:
    """Percent of the clients of other endpoints that move when one of `count` goes: the mean and the most."""
    rng = random.Random(count)
    clients = [(socket.inet_ntoa(rng.randbytes(4)), rng.randrange(1, 65536)) for _ in range(CLIENTS)]
    targets = [Target(Address(f"10.0.{number // 250}.{number % 250}"), 8080) for number in range(count)]

    def endpoints(of: list[Target]) -> list[Target | None]:
        balancer = Balancer(rng=rng)
        balancer.update(of, None, Balancing(scheduler, seed=7))
        return [balancer.pick(client, 0.0, port=port) for client, port in clients]

    before, found = endpoints(targets), []
    for gone in rng.sample(targets, min(GONE, count)):
        after = endpoints([target for target in targets if target != gone])
        others = [(old, new) for old, new in zip(before, after, strict=True) if old != gone]
        found.append(100 * sum(old != new for old, new in others) / len(others))
    return sum(found) / len(found), max(found)


def main(say: Callable[[str], None] = print) -> None:
    """Print the table."""
    say("| endpoints | source-hash, mean (most) | maglev, mean (most) |\n|---|---|---|")
    for count in (3, 10, 100):
        cells = [
            f"{mean:.1f} % ({most:.1f} %)" for mean, most in (moved(each, count) for each in Scheduler if each.hashes)
        ]
        say(f"| {count} | {' | '.join(cells)} |")


if __name__ == "__main__":
    main()
