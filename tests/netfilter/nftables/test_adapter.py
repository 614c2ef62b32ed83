"""The nftables adapter alone: the program nft, and kernels that accept less at once."""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kubeproxy.model import Protocol
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.nftables.adapter import Nftables
from kubeproxy.netfilter.ruleset import RuleSet
from tests.netfilter.stage import Adapter, destination, dump, rule_set
from tests.netfilter.test_adapters import RULES, WEB
from tests.support.lab import Host, Network

MANY = rule_set({destination(f"10.{100 + (i >> 8)}.{i & 255}.1", Protocol.TCP): 7001 for i in range(9000)})


@contextlib.asynccontextmanager
async def aclosing(nftables: Nftables) -> AsyncIterator[Nftables]:
    """An adapter, closed at the end."""
    try:
        yield nftables
    finally:
        await nftables.close()


def program(tmp_path: Path, text: str) -> str:
    """Another program with the name nft."""
    path = tmp_path / "nft"
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return str(path)


async def test_no_nft() -> None:
    async with aclosing(Nftables(nft="/nowhere/nft")) as nftables:
        with pytest.raises(KernelError, match="cannot run /nowhere/nft: No such file or directory; is it installed"):
            await nftables.apply(RuleSet(), verify=True)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("exit 3", "exit status 3, no message"),
        ("echo Segmentation fault >&2; exit 139", "Segmentation fault"),
        ("echo 'Error: Operation not permitted' >&2; exit 1", "it needs CAP_NET_ADMIN"),
        ("exec sleep 60", "did not end within 0.2 s; it was killed"),
    ],
)
async def test_an_nft_that_misbehaves(tmp_path: Path, text: str, message: str) -> None:
    async with aclosing(Nftables(nft=program(tmp_path, text), timeout_s=0.2)) as nftables:
        with pytest.raises(KernelError, match=message):
            await nftables.apply(RULES, verify=True)


async def test_a_faulty_command_is_not_repeated_at_length(tmp_path: Path) -> None:
    text = """
case "$*" in *list*) echo "Error: No such file or directory" >&2; exit 1;; esac
cat >/dev/null
echo "/dev/stdin:1:1-5: Error: syntax error, unexpected foo" >&2
head -c 100000 /dev/zero | tr '\\0' x >&2
exit 1"""
    async with aclosing(Nftables(nft=program(tmp_path, text))) as nftables:
        with pytest.raises(KernelError, match="unexpected foo") as caught:
            await nftables.apply(RULES, verify=True)
    assert len(str(caught.value)) < 600


@pytest.mark.netns
def test_a_refused_transaction_is_retried_from_the_kernels_table(
    network: Network, environment: dict[str, str], tmp_path: Path
) -> None:
    refusals = tmp_path / "refusals"
    (tmp_path / "bin").mkdir()
    wrapper = program(
        tmp_path / "bin",
        f'[ "$1" = -f ] && [ -e {refusals} ] && rm {refusals} && echo "Error: Device or resource busy" >&2 && exit 1\n'
        'exec /usr/sbin/nft "$@"',
    )
    path = f"{Path(wrapper).parent}:{os.environ['PATH']}"
    adapter = Adapter(network.node, "nftables", env=environment, prefix=["env", f"PATH={path}"])
    refusals.touch()
    assert adapter.apply(RULES, verify=True)
    refusals.touch()
    assert adapter.apply(rule_set({WEB: 7001}))
    assert not adapter.apply(rule_set({WEB: 7001}), verify=True)


@pytest.mark.netns
def test_an_unprivileged_user_namespace_takes_thousands_too() -> None:
    with Host("outside") as outside:
        if outside.run(["unshare", "-Urn", "true"], check=False).returncode != 0:
            pytest.skip("no user namespaces here")
        adapter = Adapter(outside, "nftables", prefix=["unshare", "-Urn"])
        assert adapter.apply(MANY, verify=True)
        assert not adapter.apply(MANY, verify=True)
        assert adapter.apply(rule_set({WEB: 7001}))
        assert not adapter.apply(rule_set({WEB: 7001}), verify=True)
        assert adapter.cleanup()


@pytest.mark.netns
def test_a_table_of_that_name_that_is_not_like_ours(network: Network, environment: dict[str, str]) -> None:
    network.node.run(["nft", "-f", "-"], input="table inet kubeproxy { set refused { type ipv4_addr; }; chain x { }; }")
    adapter = Adapter(network.node, "nftables", env=environment)
    assert adapter.apply(RULES, verify=True)
    assert "chain x" not in dump(network.node)
    assert not adapter.apply(RULES, verify=True)
