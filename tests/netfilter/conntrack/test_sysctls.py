"""The size of connection tracking as kube-proxy sets it: wanted values (pure), written ones, and a real kernel."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubeproxy.netfilter.conntrack.sysctls import DIRECTORY, ConntrackLimits, apply
from tests.support.lab import Host

KUBE_PROXY = ConntrackLimits(max_per_core=32768, min=131072, tcp_established_s=86400, tcp_close_wait_s=3600)
HOST = {
    "nf_conntrack_max": 65536,
    "nf_conntrack_buckets": 16384,
    "nf_conntrack_tcp_timeout_established": 432000,
    "nf_conntrack_tcp_timeout_close_wait": 60,
    "nf_conntrack_udp_timeout": 30,
    "nf_conntrack_udp_timeout_stream": 120,
    "nf_conntrack_tcp_be_liberal": 0,
}


@pytest.fixture
def kernel(tmp_path: Path) -> Path:
    """A directory with what a kernel has at first."""
    for name, value in HOST.items():
        (tmp_path / name).write_text(f"{value}\n")
    return tmp_path


def read(directory: Path) -> dict[str, int]:
    return {path.name: int(path.read_text()) for path in directory.iterdir()}


@pytest.mark.parametrize(
    ("max_per_core", "least", "cores", "size"),
    [
        (32768, 131072, 2, 131072),
        (32768, 131072, 4, 131072),
        (32768, 131072, 16, 524288),
        (32768, 0, 2, 65536),
        (0, 131072, 16, 0),
    ],
)
def test_the_table_s_size(max_per_core: int, least: int, cores: int, size: int) -> None:
    assert ConntrackLimits(max_per_core=max_per_core, min=least).table_size(cores) == size


def test_nothing_wanted_is_nothing_done(kernel: Path) -> None:
    assert apply(ConntrackLimits(min=1 << 30), directory=kernel) == []
    assert read(kernel) == HOST


def test_kube_proxys_defaults(kernel: Path) -> None:
    assert apply(KUBE_PROXY, cores=8, directory=kernel) == []
    assert read(kernel) == {
        **HOST,
        "nf_conntrack_max": 262144,
        "nf_conntrack_buckets": 65536,
        "nf_conntrack_tcp_timeout_established": 86400,
        "nf_conntrack_tcp_timeout_close_wait": 3600,
    }


def test_udp_and_a_liberal_window(kernel: Path) -> None:
    limits = ConntrackLimits(udp_s=10.2, udp_stream_s=0.001, tcp_be_liberal=True)
    assert apply(limits, directory=kernel) == []
    assert read(kernel) == {
        **HOST,
        "nf_conntrack_udp_timeout": 11,
        "nf_conntrack_udp_timeout_stream": 1,
        "nf_conntrack_tcp_be_liberal": 1,
    }


def test_a_larger_table_is_left_alone(kernel: Path) -> None:
    (kernel / "nf_conntrack_max").write_text("1048576\n")
    (kernel / "nf_conntrack_buckets").write_text("262144\n")
    assert apply(KUBE_PROXY, cores=8, directory=kernel) == []
    assert (read(kernel)["nf_conntrack_max"], read(kernel)["nf_conntrack_buckets"]) == (1048576, 262144)


def test_a_correct_setting_is_not_written(kernel: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    apply(KUBE_PROXY, cores=8, directory=kernel)
    monkeypatch.setattr(Path, "write_text", lambda *_: pytest.fail("written again"))
    assert apply(KUBE_PROXY, cores=8, directory=kernel) == []


def test_every_failure_is_reported_and_the_rest_is_done(kernel: Path) -> None:
    (kernel / "nf_conntrack_max").unlink()
    (kernel / "nf_conntrack_tcp_timeout_established").write_text("long\n")
    (kernel / "nf_conntrack_buckets").unlink()
    (kernel / "nf_conntrack_buckets").mkdir()
    assert apply(KUBE_PROXY, cores=8, directory=kernel) == [
        "nf_conntrack_tcp_timeout_established: 86400 is wanted, long is there and stays: not a number",
        "nf_conntrack_max: 262144 is wanted, but the kernel has no such setting; is nf_conntrack loaded?",
        "nf_conntrack_buckets: 65536 is wanted, nothing is there and stays: Is a directory",
    ]
    assert read_one(kernel, "nf_conntrack_tcp_timeout_close_wait") == 3600


def read_one(directory: Path, name: str) -> int:
    return int((directory / name).read_text())


@pytest.mark.netns
def test_a_real_kernel_in_a_namespace_of_its_own() -> None:
    if not DIRECTORY.is_dir():
        pytest.skip("this kernel has no connection tracking loaded")
    size, timeout = read_one(DIRECTORY, "nf_conntrack_max"), read_one(DIRECTORY, "nf_conntrack_udp_timeout")
    limits = ConntrackLimits(max_per_core=size + 4, min=0, udp_s=77, tcp_close_wait_s=78, tcp_be_liberal=True)
    with Host("node") as host, host.entered():
        failures = apply(limits, cores=1)
        assert read_one(DIRECTORY, "nf_conntrack_udp_timeout") == 77
        assert read_one(DIRECTORY, "nf_conntrack_tcp_timeout_close_wait") == 78
        assert read_one(DIRECTORY, "nf_conntrack_tcp_be_liberal") == 1
    assert failures[0].startswith(f"nf_conntrack_max: {size + 4} is wanted, {size} is there and stays: ")
    assert read_one(DIRECTORY, "nf_conntrack_max") == size
    assert read_one(DIRECTORY, "nf_conntrack_udp_timeout") == timeout
