"""Random changes of everything, from a seed, with checked traffic. At the end no resource has grown."""

from __future__ import annotations

import os
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from tests.support.lab import Daemon, Host
from tests.system.e2e import kernel_state
from tests.system.e2e.conftest import PATHS
from tests.system.e2e.stage import QUICK, Stage, ask, endpoints, exchange, service, until

pytestmark = [pytest.mark.netns, pytest.mark.long]

SEED = int(os.environ.get("KUBEPROXY_SEED", random.randrange(1 << 32)))
CHANGES_S = 8.0
"""The duration of changes, with each adapter."""
LIVE_S = 4.0
"""The longest time until a change is in effect, on a busy machine."""
PATIENCE_S = 2.0
"""The timeout of a client; one with a first packet before the rule gets no answer."""
STEADY = "10.96.0.1"
"""The permanent Service, with changing endpoints, but never without any."""
FLEETING = [f"10.96.1.{number}" for number in range(1, 9)]
"""Services that appear and disappear, and lose all endpoints."""


@dataclass(slots=True)
class Truth:
    """Which answers a service may give: all that were right at some time in the last `LIVE_S` seconds.

    The empty string means that a refusal or no answer is right, too.
    """

    history: list[tuple[float, frozenset[str]]] = field(default_factory=lambda: [(0.0, frozenset({""}))])
    lock: threading.Lock = field(default_factory=threading.Lock)

    def now(self, *answers: str) -> None:
        """From now on these answers are right."""
        with self.lock:
            self.history.append((time.monotonic(), frozenset(answers or ("",))))

    def between(self, begin: float, end: float) -> frozenset[str]:
        """The right answers for a request at `begin` with its answer at `end`."""
        with self.lock:
            history = list(self.history)
        right: set[str] = set()
        for index, (since, answers) in enumerate(history):
            until_ = history[index + 1][0] if index + 1 < len(history) else end
            if since <= end and until_ + LIVE_S >= begin:
                right |= answers
        return frozenset(right)


@dataclass(slots=True)
class Askers:
    """Ask random services until the test ends, and compare every answer with the truth."""

    truths: dict[str, Truth]
    stop: threading.Event = field(default_factory=threading.Event)
    wrong: list[str] = field(default_factory=list)
    count: int = 0

    def ask(self, host: Host, vips: Sequence[str], seed: int) -> None:
        """Run one client."""
        rng = random.Random(seed)
        while not self.stop.wait(0.01):
            vip = rng.choice(vips)
            begin = time.monotonic()
            try:
                seen = ask(host, (vip, 80), timeout_s=PATIENCE_S)
                why = ""
            except OSError as error:
                seen, why = "", f" ({error!r})"
            end = time.monotonic()
            if seen not in (right := self.truths[vip].between(begin, end)):
                self.wrong.append(f"{host.name} asked {vip} and got {seen!r}{why}; right: {sorted(right)}")
            self.count += 1

    def exchange(self, host: Host, seed: int) -> None:
        """Send half a megabyte each way, again and again."""
        while not self.stop.wait(0.05):
            seed += 1
            try:
                exchange(host, (STEADY, 80), 500_000, f"{seed}")
            except (OSError, AssertionError) as error:
                self.wrong.append(f"{host.name} exchanged with {STEADY}: {error!r}")


def change(stage: Stage, truths: dict[str, Truth], rng: random.Random) -> None:
    """Make one random change of the manifests."""
    vip = rng.choice([STEADY, *FLEETING])
    name = f"s{vip.replace('.', '-')}"
    pods = rng.sample(range(4), rng.randint(1, 4))
    fate = rng.random() if vip != STEADY else 0.0
    if fate < 0.6:
        # Dead endpoints beside working ones cause no failed request.
        dead = rng.sample(["10.3.0.1", "10.3.1.9"], rng.randint(0, 1))
        labels = {"labels": {"turn": str(rng.random())}}
        stage.write(name, service(name, vip, metadata=labels), endpoints(name, [*pods, *dead]))
        truths[vip].now(*(f"pod-{pod}" for pod in pods))
    elif fate < 0.8:
        stage.write(name, service(name, vip), endpoints(name, []))
        truths[vip].now()
    elif (stage.manifests / f"{name}.yaml").exists():
        stage.remove(name)
        truths[vip].now()


@pytest.fixture
def vips(stage: Stage) -> Iterator[dict[str, Truth]]:
    """The truth about every service; the permanent one exists."""
    truths = {vip: Truth() for vip in (STEADY, *FLEETING)}
    name = f"s{STEADY.replace('.', '-')}"
    stage.write(name, service(name, STEADY), endpoints(name, range(4)))
    truths[STEADY].now(*(f"pod-{pod}" for pod in range(4)))
    truths[STEADY].history.pop(0)
    yield truths
    stage.clear()


@pytest.mark.parametrize("netfilter", PATHS)
def test_soak(stage: Stage, vips: dict[str, Truth], netfilter: str) -> None:
    print(f"KUBEPROXY_SEED={SEED} repeats it")
    rng = random.Random(SEED)
    daemon = stage.daemon(QUICK, "--iptables-sync-period=1s", netfilter=netfilter)
    stage.await_answers(0, 1, 2, 3, address=(STEADY, 80))
    askers = Askers(vips)
    soak(stage, askers, rng, seconds=2.0)
    before = quiet(stage, daemon, vips)
    soak(stage, askers, rng, seconds=CHANGES_S - 2.0)
    after = quiet(stage, daemon, vips)
    assert askers.wrong == [], f"seed {SEED}"
    assert askers.count > 200
    assert after[0] <= before[0] + 4, "descriptors"
    assert after[1] <= before[1] + 8192, "KiB of memory"
    for line in daemon.log().splitlines():
        assert " error " not in line, line
    assert daemon.terminate() == 0


def soak(stage: Stage, askers: Askers, rng: random.Random, *, seconds: float) -> None:
    """Make changes and traffic for `seconds`."""
    askers.stop.clear()
    threads = [
        threading.Thread(target=askers.ask, args=(host, vips, rng.random()))
        for host in stage.asking
        # Requests to a missing service wait long; the others have their own threads.
        for vips in ([STEADY], [STEADY], FLEETING, FLEETING)
    ]
    threads += [threading.Thread(target=askers.exchange, args=(host, rng.randrange(1000))) for host in stage.asking]
    with ExitStack() as ending:
        for thread in threads:
            thread.start()
            ending.callback(thread.join)
        ending.callback(askers.stop.set)
        end = time.monotonic() + seconds
        while time.monotonic() < end and not askers.wrong:
            change(stage, askers.truths, rng)
            askers.stop.wait(rng.uniform(0.02, 0.3))


def quiet(stage: Stage, daemon: Daemon, truths: dict[str, Truth]) -> tuple[int, int]:
    """Descriptors and KiB of memory with only the permanent service and no client."""
    for vip in FLEETING:
        (stage.manifests / f"s{vip.replace('.', '-')}.yaml").unlink(missing_ok=True)
        truths[vip].now()
    until(lambda: kernel_state.redirects(stage.node).keys() == {(STEADY, 80)}, "only the steady one is left")
    counts: list[int] = []

    def settled() -> bool:
        counts.append(kernel_state.descriptors(daemon.process.pid))
        return len(counts) > 10 and len(set(counts[-10:])) == 1

    until(settled, "no client is left")
    return counts[-1], kernel_state.resident_kib(daemon.process.pid)
