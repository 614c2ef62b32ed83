"""Command lines as Go programs read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.cli.go_flags import as_click
from kubeproxy.config.flags import flags


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("--profiling", "--profiling=true"),
        ("--profiling=false", "--profiling=false"),
        ("--profiling false", "--profiling=true false"),
        ("--proxy-mode userspace", "--proxy-mode=userspace"),
        ("--proxy_mode=userspace", "--proxy-mode=userspace"),
        ("--bind_address_hard_fail", "--bind-address-hard-fail=true"),
        ("-v=2", "--v=2"),
        ("-v 2", "--v=2"),
        ("--v=2", "--v=2"),
        ("--v 2", "--v=2"),
        ("-v2", "-v2"),
        ("--hostname-override --cleanup", "--hostname-override=--cleanup"),
        ("--manifests - --manifests a_b", "--manifests=- --manifests=a_b"),
        ("--feature-gates=A=true,B=false", "--feature-gates=A=true,B=false"),
        ("--master=", "--master="),
        ("--master", "--master"),
        ("--version", "--version=true"),
        ("--version=raw", "--version=raw"),
        ("-cleanup", "-cleanup"),
        ("---cleanup", "---cleanup"),
        ("--un_known x", "--un_known x"),
        ("-- --cleanup -v=2", "-- --cleanup -v=2"),
        ("--help", "--help"),
    ],
)
def test_translation(line: str, expected: str) -> None:
    assert as_click(line.split(), flags()) == expected.split()


@given(st.lists(st.sampled_from(["-v", "-v=1", "--cleanup", "--master", "--", "-", "--x_y", "a", "--oom_score_adj=1"])))
def test_translation_keeps_every_argument_and_is_idempotent(args: list[str]) -> None:
    once = as_click(args, flags())
    assert as_click(once, flags()) == once
    assert sum(arg.count("-v") + arg.count("--v") for arg in once) >= sum(arg in ("-v", "-v=1") for arg in args)
