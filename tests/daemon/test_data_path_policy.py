"""`kubeproxy.daemon.data_path_policy`: the policy that follows from configuration, kernel and rescue."""

from __future__ import annotations

from typing import Literal

from msgspec.structs import replace

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.data_path_policy import DataPaths
from kubeproxy.proxier.data_path_choice import DataPathPolicy, Wanted
from tests.support.doubles.netfilter import FakeNetfilter


def configured(data_path: Literal["userspace", "kernel", "auto"]) -> Configuration:
    """A configuration with this data path."""
    plain = Configuration()
    return replace(plain, kubeproxy=replace(plain.kubeproxy, data_path=data_path))


def waits(paths: DataPaths) -> bool:
    """Whether the kernel path waits."""
    return paths.policy.rescue_starts


async def test_a_change_to_the_kernel_path_waits_for_the_rescue() -> None:
    paths = DataPaths(FakeNetfilter())
    await paths.use(configured("userspace"))
    await paths.use(configured("kernel"))
    assert waits(paths)
    paths.use_rescue(works=False)
    assert waits(paths)
    await paths.use(configured("kernel"))
    assert waits(paths), "another reload does not end it"
    paths.use_rescue(works=True)
    assert not waits(paths)
    paths.use_rescue(works=False)
    assert not waits(paths), "clients that are on the kernel path stay there"
    await paths.use(configured("kernel"))
    assert not waits(paths)


async def test_it_does_not_wait_for_a_rescue_that_does_not_come() -> None:
    paths = DataPaths(FakeNetfilter())
    await paths.use(configured("userspace"))
    await paths.use(configured("kernel"))
    paths.cease_waiting()
    assert paths.policy == DataPathPolicy(Wanted.KERNEL)


async def test_it_waits_only_where_something_serves_meanwhile() -> None:
    paths = DataPaths(FakeNetfilter())
    await paths.use(configured("kernel"))
    assert not waits(paths), "at start the first rules wait for the rescue"
    await paths.use(configured("auto"))
    paths.use_rescue(works=True)
    await paths.use(configured("kernel"))
    assert not waits(paths), "it works already"
