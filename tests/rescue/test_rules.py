"""The rescue rules in the kernel: read back they are what was wanted, and they leave nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from tests.support.lab import Host

pytestmark = pytest.mark.netns

_ROUND_TRIP = """
import asyncio, json, subprocess
from dataclasses import replace
from kubeproxy.netfilter.interface import Feature
from kubeproxy.netfilter.conntrack.sysctls import tcp_timeouts
from kubeproxy.netfilter.nftables.adapter import Nftables, _SPREADING
from kubeproxy.netfilter.nftables.rescue_sets import RescueSets
from kubeproxy.model import Family

async def main():
    await Nftables().probe(Feature.RESCUE)
    adapter, foreign = Nftables(), []
    rules = replace(_SPREADING, rescue=7)
    found = {"made": await adapter.apply(rules, verify=True)}
    adapter.on_foreign_change(lambda: foreign.append(1))
    elements = RescueSets()
    found["at once"] = elements._alive_for() > 1.0
    elements.renew_alive()
    elements.renew_alive()
    await asyncio.sleep(0.1)
    found["foreign"] = len(foreign)
    found["again"] = await Nftables().apply(rules, verify=True)
    found["other group"] = await Nftables().apply(replace(rules, rescue=8), verify=True)
    longer = replace(rules, rescue=8, tcp_timeouts={**tcp_timeouts(), "established": 7_777})
    found["other timeouts"] = await Nftables().apply(longer, verify=True)
    found["the same timeouts"] = await Nftables().apply(longer, verify=True)
    found["kept"] = subprocess.run(
        ["nft", "list", "ct", "timeout", "inet", "kubeproxy", "rescue4"], capture_output=True, text=True, check=True
    ).stdout.partition("policy = ")[2].partition("}")[0]
    found["stamps"] = [list(map(len, elements.stamps(family)[:2])) for family in Family]
    elements.renew_alive(30.0)
    elements.renew_alive()
    found["not shortened"] = elements._alive_for() > 20
    elements.remove_alive()
    found["removed"] = elements._alive_for() == 0
    found["gone"] = await Nftables().apply(replace(rules, rescue=None), verify=True)
    found["still"] = await Nftables().apply(replace(rules, rescue=None), verify=True)
    try:
        elements.renew_alive()
    except OSError as error:
        found["refused"] = error.strerror
    print(json.dumps(found))

asyncio.run(main())
"""


def test_round_trip() -> None:
    with Host("node") as node:
        process = node.popen([sys.executable, "-c", _ROUND_TRIP], stdout=subprocess.PIPE, text=True)
        printed, _ = process.communicate(timeout=60)
        assert json.loads(printed.splitlines()[-1]) == {
            "made": True,
            "at once": True,
            "foreign": 0,
            "again": False,
            "other group": True,
            "other timeouts": True,
            "the same timeouts": False,
            "kept": "{ syn_sent : 1, established : 7777 ",
            "stamps": [[0, 0], [0, 0]],
            "not shortened": True,
            "removed": True,
            "gone": True,
            "still": False,
            "refused": "No such file or directory",
        }
        assert "rescue" not in node.run(["nft", "list", "ruleset"]).stdout
