"""The difference between two configurations."""

from __future__ import annotations

from kubeproxy.config.diff import compare, effective
from kubeproxy.config.schema import Configuration
from tests.config.files import of_flags


def test_equal_configurations_do_not_differ() -> None:
    difference = compare(Configuration(), of_flags().configuration)
    assert (difference.live, difference.restart) == ((), ())


def test_changes_are_sorted_by_their_effect() -> None:
    new = of_flags(dial_timeouts="1s", v="4", netfilter="none", oom_score_adj="0", ipvs_scheduler="rr").configuration
    difference = compare(Configuration(), new)
    assert difference.live == ("logging.verbosity", "ipvs.scheduler", "kubeproxy.dialTimeouts")
    assert difference.restart == ("oomScoreAdj", "kubeproxy.netfilter")


def test_a_change_that_waits_for_a_restart_keeps_the_old_value() -> None:
    old = of_flags(oom_score_adj="-500").configuration
    new = of_flags(oom_score_adj="0", dial_timeouts="1s").configuration
    in_effect = effective(old, new)
    assert in_effect.oom_score_adj == -500
    assert in_effect.kubeproxy.dial_timeouts == new.kubeproxy.dial_timeouts
    assert compare(in_effect, new).restart == ("oomScoreAdj",)
