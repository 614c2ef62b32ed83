"""The default scheduler, and what each of IPVS becomes."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import pytest

from kubeproxy.config.default_scheduler import OF_IPVS, scheduler_of
from kubeproxy.config.kube_proxy_settings import IPVSScheduler
from kubeproxy.model import Scheduler
from tests.config.files import loaded


@pytest.mark.parametrize(
    ("names", "scheduler"),
    [
        (("", "rr", "wrr", "dh", "lblc", "lblcr"), Scheduler.ROUND_ROBIN),
        (("lc", "wlc", "sed", "nq"), Scheduler.LEAST_CONNECTIONS),
        (("sh",), Scheduler.SOURCE_HASH),
        (("mh",), Scheduler.MAGLEV),
    ],
)
def test_with_mode_ipvs_its_scheduler_decides(tmp_path: Path, names: tuple[str, ...], scheduler: Scheduler) -> None:
    for name in names:
        found = loaded(tmp_path, f'mode: ipvs\nipvs: {{scheduler: "{name}"}}\n')
        assert scheduler_of(found.configuration) is scheduler
        warned = [text for text in found.warnings if "ipvs.scheduler" in text]
        assert bool(warned) is (name not in OF_IPVS)
        assert not warned or ("destination" in warned[0] and "round-robin is used" in warned[0])


def test_every_scheduler_of_ipvs_and_of_ours_can_be_configured(tmp_path: Path) -> None:
    assert OF_IPVS.keys() <= set(get_args(IPVSScheduler))
    for scheduler in Scheduler:
        assert scheduler_of(loaded(tmp_path, f"kubeproxy: {{scheduler: {scheduler}}}\n").configuration) is scheduler


def test_our_own_setting_comes_first_and_other_modes_have_no_scheduler(tmp_path: Path) -> None:
    own = loaded(tmp_path, "mode: ipvs\nipvs: {scheduler: dh}\nkubeproxy: {scheduler: random}\n")
    assert scheduler_of(own.configuration) is Scheduler.RANDOM
    assert not [text for text in own.warnings if "ipvs.scheduler" in text]
    other = loaded(tmp_path, "mode: iptables\nipvs: {scheduler: lc}\n")
    assert scheduler_of(other.configuration) is Scheduler.ROUND_ROBIN


def test_a_default_that_needs_workers_is_warned_of_where_there_are_none(tmp_path: Path) -> None:
    strict = "kubeproxy: {dataPath: kernel, userspaceFallback: never}\n"
    for text, warns in (
        (strict, False),
        (strict + "mode: ipvs\nipvs: {scheduler: wlc}\n", True),
        (strict.replace("never", "always") + "mode: ipvs\nipvs: {scheduler: wlc}\n", False),
    ):
        assert any("userspaceFallback" in warning for warning in loaded(tmp_path, text).warnings) is warns
