"""Random histories of Services lead to the same rules and listeners as a start with the same objects, and changes of
some Services to the deletion of the same flows as a comparison of all rules.

HISTORIES=1000 plays that many of each kind, the first of them with the seed HISTORY (0). A history that fails is
played again by its seed, as in ``HISTORIES=1 HISTORY=17``.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.netfilter.grounds import Ground, IptablesHosts, NftablesHosts, NoKernel
from tests.netfilter.histories import Maker, World
from tests.netfilter.play import Play
from tests.support.lab import Host


def seeds(some: int) -> range:
    """The seeds of the histories to be played."""
    first = int(os.environ.get("HISTORY", "0"))
    return range(first, first + int(os.environ.get("HISTORIES", some)))


async def played(seed: int, ground: Ground, length: int) -> Counter[str]:
    """Play a history. Return what has happened."""
    maker = Maker(seed)
    play = Play(World(maker.settings()), ground)
    try:
        await play.start()
        for number, batch in enumerate(maker.batches(length)):
            try:
                await play.batch(batch)
            except BaseException as error:
                error.add_note(f"seed {seed}, batch {number}: {batch}")
                raise
    finally:
        await play.close()
    return play.counts


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    """A host without rules; this thread is on it."""
    monkeypatch.setenv("XTABLES_LOCKFILE", str(tmp_path / "xtables.lock"))
    with Host("rules") as host, host.entered():
        yield host


async def test_changes_lead_where_a_start_does() -> None:
    """Without a kernel, so that there can be many histories."""
    counts = Counter[str]()
    for seed in seeds(12):
        counts += await played(seed, NoKernel(), 20)
    assert counts["changes of Services"] > counts["nothing"] // 10
    assert counts["stale flows"]


@pytest.mark.netns
@pytest.mark.parametrize("seed", seeds(2))
async def test_nftables_has_the_rules_of_a_start(host: Host, seed: int) -> None:
    with NftablesHosts(host) as ground:
        await played(seed, ground, 12)


@pytest.mark.netns
@pytest.mark.parametrize("seed", seeds(1))
async def test_nftables_has_them_also_in_a_kernel_that_does_not_notify(host: Host, seed: int) -> None:
    with NftablesHosts(host, notified=False) as ground:
        await played(seed, ground, 8)


@pytest.mark.netns
@pytest.mark.parametrize("seed", seeds(1))
async def test_iptables_has_the_rules_of_a_start(host: Host, seed: int) -> None:
    with IptablesHosts(host) as ground:
        await played(seed, ground, 8)
