"""What differs between two configurations."""

from __future__ import annotations

from kubeproxy.config.reload import compare
from kubeproxy.config.schema import Configuration
from tests.config.files import of_flags


def test_equal_configurations_do_not_differ() -> None:
    difference = compare(Configuration(), of_flags().configuration)
    assert (difference.live, difference.restart) == ((), ())


def test_changes_are_sorted_by_what_they_take() -> None:
    new = of_flags(dial_timeouts="1s", v="4", netfilter="none", oom_score_adj="0", ipvs_scheduler="rr").configuration
    difference = compare(Configuration(), new)
    assert difference.live == ("logging.verbosity", "kubeproxy.dialTimeouts")
    assert difference.restart == ("oomScoreAdj", "kubeproxy.netfilter")
