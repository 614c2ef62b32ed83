"""A rolling update loses no request and cuts no connection early, where the proxies take part; beside kube-proxy's way.

Skipped unless KUBERNETES_BINARIES names the directory of the programs.
`python -m tests.tools.bench.rollouts rolling-update` prints the figures.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.system.e2e.control_plane import BINARIES, binaries
from tests.system.rollouts.rolling_update import REPLICAS, Laboratory, Manner, Outcome, laboratory
from tests.system.rollouts.traffic import Load

pytestmark = [
    pytest.mark.netns,
    pytest.mark.long,
    pytest.mark.timeout(600),
    pytest.mark.skipif(binaries() is None, reason=f"{BINARIES} is not set: no real API server to start"),
]


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Laboratory]:
    programs = binaries()
    assert programs is not None
    with laboratory(tmp_path, programs) as opened:
        yield opened


def _complete(outcome: Outcome) -> None:
    assert outcome.status == 0, outcome.output
    assert outcome.output.endswith("replicationcontroller/web rolling updated\n")
    assert outcome.report.answered > 0


def test_nothing_is_lost_where_the_proxies_take_part(lab: Laboratory) -> None:
    """300 new connections a second, 50 longer ones that end by themselves; pods that end at SIGTERM at once."""
    outcome = lab.update(Manner.DRAINED, Load())
    _complete(outcome)
    assert len(outcome.drained) == REPLICAS, outcome.output
    assert outcome.report.failures == []
    assert outcome.report.long_broken == []


def test_no_connection_is_cut_before_the_drain_timeout(lab: Laboratory) -> None:
    """Connections that do not end by themselves keep their pod for --drain-timeout, and no longer."""
    outcome = lab.update(Manner.DRAINED, Load(50, 20, (600.0, 600.0)), drain_timeout_s=6.0)
    _complete(outcome)
    assert len(outcome.drained) == REPLICAS, outcome.output
    assert outcome.report.long_broken != []
    for cut in outcome.report.long_broken:
        cut_at = outcome.report.began + float(cut.partition(":")[0])
        began, ended = max((each for each in outcome.drained.values() if each[1] <= cut_at), key=lambda each: each[1])
        assert ended - began >= 5.5, (cut, outcome.drained)
    assert "connections are still open after 6 s (--drain-timeout)" in outcome.output
    assert outcome.report.failures == []


def test_kube_proxy_loses_what_our_proxies_do_not(lab: Laboratory) -> None:
    """The same update with kube-proxy, then with ours, which is not asked to drain, but hides dead pods.

    A pod that ends resets what it has accepted, so even then a single connection may be lost.
    """
    beside = lab.update(Manner.KUBE_PROXY, Load())
    _complete(beside)
    assert beside.report.failures != []
    assert beside.report.long_broken != []
    undrained = lab.update(Manner.UNDRAINED, Load())
    _complete(undrained)
    assert len(undrained.report.failures) < len(beside.report.failures) / 2
    assert undrained.report.long_broken != []
