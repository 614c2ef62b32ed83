"""The file of the last state: what is read is what was written, and nothing else is."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kubeproxy.daemon import saved_state
from kubeproxy.daemon.saved_state import SavedState, SourceState, StateFile, UnusableStateError
from kubeproxy.model import (
    Address,
    Endpoint,
    EndpointPort,
    EndpointSlice,
    Family,
    Node,
    Protocol,
    Service,
    ServiceName,
    ServicePort,
    SliceName,
    TrafficPolicy,
)
from kubeproxy.model.drain_request import DrainRequest, DrainRequests, Want

WEB = ServiceName("default", "web")
DRAIN = DrainRequests(7, (DrainRequest("rollout/web", "web-1", (Address("10.0.0.1"),), Want.DRAIN, 7, 99.5),))


def service(name: str) -> Service:
    """A Service with every field."""
    return Service(
        ServiceName("default", name),
        (Address("10.96.0.1"), Address("fd96::1")),
        (ServicePort("http", Protocol.TCP, 80, 30080), ServicePort("dns", Protocol.UDP, 53)),
        affinity_timeout_s=60,
        internal_policy=TrafficPolicy.LOCAL,
        external_policy=TrafficPolicy.LOCAL,
        external_ips=(Address("192.0.2.1"),),
        load_balancer_ips=(Address("192.0.2.2"),),
        load_balancer_source_ranges=("10.0.0.0/8",),
        health_check_node_port=30100,
        created=1_700_000_000,
        drain=DRAIN,
    )


def endpoint_slice(name: str) -> EndpointSlice:
    """An EndpointSlice with every field."""
    one = Endpoint(
        Address("10.0.0.1"),
        ready=False,
        serving=True,
        terminating=True,
        node="node-1",
        zone="a",
        zone_hints=frozenset({"a", "b"}),
        node_hints=frozenset({"node-1"}),
        pod="6f1c1c9e",
        draining=True,
    )
    ports = (EndpointPort("http", Protocol.TCP, 8080),)
    return EndpointSlice(SliceName("default", name), WEB, Family.IPV4, ports, (one,), "2026-01-02T03:04:05Z")


NODE = Node("node-1", (Address("10.2.0.1"),), "a", False, "uid")
STATE = SavedState(
    [
        SourceState("manifests", [service("web")], [endpoint_slice("web-1")], 1_000.0),
        SourceState(
            "kubernetes", [service(f"s{i}") for i in range(250)], [endpoint_slice(f"e{i}") for i in range(101)]
        ),
        SourceState("empty", [], []),
    ],
    NODE,
)


@pytest.fixture
def file(tmp_path: Path) -> StateFile:
    return StateFile(tmp_path / "run", "me")


def test_what_is_read_is_what_was_written(file: StateFile, tmp_path: Path) -> None:
    assert file.read() is None
    file.write(STATE)
    os.utime(file.path, (5_000.0, 5_000.0))
    found = file.read()
    assert found is not None
    assert found.node == NODE
    assert [(it.name, list(it.services), list(it.slices)) for it in found.sources] == [
        (it.name, list(it.services), list(it.slices)) for it in STATE.sources
    ]
    assert [it.since for it in found.sources] == [1_000.0, 5_000.0, 5_000.0], "of the last confirmation, where in step"
    file.confirm()
    first, *others = (file.read() or STATE).sources
    assert first.since == 1_000.0
    assert min(it.since or 0 for it in others) > 1_700_000_000


def test_nobody_else_may_read_it_and_nothing_unfinished_stays(file: StateFile, tmp_path: Path) -> None:
    file.write(STATE)
    (tmp_path / f"run/.{file.path.name}.1").write_bytes(b"of a writer that was killed")
    assert (tmp_path / "run").stat().st_mode & 0o777 == 0o700
    assert file.path.stat().st_mode & 0o777 == 0o600
    file.write(SavedState([]))
    assert [it.name for it in (tmp_path / "run").iterdir()] == [file.path.name]
    assert file.read() == SavedState([])


def _open_to_others(path: Path) -> None:
    path.chmod(0o640)


def _of_another_user(path: Path) -> None:
    os.chown(path, 65534, 65534)


def _in_an_open_directory(path: Path) -> None:
    path.parent.chmod(0o777)


def _a_link(path: Path) -> None:
    path.rename(path.with_name("elsewhere"))
    path.symlink_to("elsewhere")


def _a_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path, 0o600)


def _a_directory(path: Path) -> None:
    path.unlink()
    path.mkdir(0o700)


def _huge(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(saved_state.SIZE_MAX + 1)


def _cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-7])


def _empty(path: Path) -> None:
    path.write_bytes(b"")


def _one_bit(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def _a_bomb(path: Path) -> None:
    data = zlib.compress(bytes(saved_state._PART_MAX + 1), 1)
    path.write_bytes(saved_state._MAGIC + len(data).to_bytes(4) + data)


@pytest.mark.parametrize(
    "spoil",
    [
        _open_to_others,
        pytest.param(
            _of_another_user, marks=pytest.mark.skipif(os.geteuid() != 0, reason="only root may give it away")
        ),
        _in_an_open_directory,
        _a_link,
        _a_pipe,
        _a_directory,
        _huge,
        _cut,
        _empty,
        _one_bit,
        _a_bomb,
    ],
)
def test_anything_else_is_refused(file: StateFile, tmp_path: Path, spoil: Callable[[Path], None]) -> None:
    file.write(STATE)
    spoil(file.path)
    with pytest.raises(UnusableStateError, match=r"run/state-\w+: "):
        file.read()


@pytest.mark.parametrize(
    ("what", "reason"),
    [("_shape", "another version"), ("_place", "another boot, or of another network namespace")],
)
def test_another_versions_and_another_boots_are_refused(
    file: StateFile, monkeypatch: pytest.MonkeyPatch, what: str, reason: str
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(saved_state, what, lambda: "another")
        file.write(STATE)
        assert file.read() is not None
    with pytest.raises(UnusableStateError, match=reason):
        file.read()


def test_another_nodes_is_refused(file: StateFile, tmp_path: Path) -> None:
    StateFile(tmp_path / "run", "another").write(STATE)
    with pytest.raises(UnusableStateError, match="of another node, or of other sources"):
        file.read()


def test_what_cannot_be_written_leaves_the_file_alone(
    file: StateFile, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file.write(STATE)
    before = file.path.read_bytes()
    monkeypatch.setattr(saved_state, "SIZE_MAX", 1_000)
    with pytest.raises(UnusableStateError, match="more than"):
        file.write(STATE)
    assert file.path.read_bytes() == before
    assert len(list((tmp_path / "run").iterdir())) == 1
    (tmp_path / "file").write_text("")
    with pytest.raises(UnusableStateError, match=r"file/state-\w+: File exists"):
        StateFile(tmp_path / "file", "me").write(STATE)


def test_only_this_network_namespaces_is_removed(file: StateFile, monkeypatch: pytest.MonkeyPatch) -> None:
    assert not file.remove()
    with monkeypatch.context() as patched:
        patched.setattr(saved_state, "_place", lambda: "another")
        file.write(STATE)
    assert not file.remove()
    file.write(STATE)
    assert file.remove()
    assert file.read() is None


@pytest.mark.netns
def test_daemons_of_two_namespaces_share_a_directory(file: StateFile, tmp_path: Path) -> None:
    """Neither replaces the other's file, nor removes what the other one is writing."""
    file.write(STATE)
    unfinished = tmp_path / f"run/.{file.path.name}.1"
    unfinished.write_bytes(b"half")
    elsewhere = (
        "import sys, pathlib; from kubeproxy.daemon.saved_state import SavedState, StateFile;"
        "file = StateFile(pathlib.Path(sys.argv[1]), 'me'); assert file.read() is None; file.write(SavedState([]));"
        "assert file.read() == SavedState([]); print(file)"
    )
    ran = subprocess.run(
        ["unshare", "--net", sys.executable, "-c", elsewhere, tmp_path / "run"],
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert Path(ran.stdout.strip()).exists()
    assert ran.stdout.strip() != str(file)
    assert unfinished.exists()
    assert [it.name for it in (file.read() or SavedState([])).sources] == [it.name for it in STATE.sources]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=200)
@given(parts=st.lists(st.binary(max_size=60)), keep=st.integers(0, 3))
def test_garbage_is_refused(file: StateFile, tmp_path: Path, parts: list[bytes], keep: int) -> None:
    """Parts that zlib accepts, behind as many good ones: what they hold is no state."""
    good = list(file._parts(STATE))[:keep]
    data = b"".join(len(it).to_bytes(4) + it for it in (zlib.compress(part) for part in (*good, *parts)))
    (tmp_path / "run").mkdir(0o700, exist_ok=True)
    path = file.path
    path.write_bytes(saved_state._MAGIC + data)
    path.chmod(0o600)
    with pytest.raises(UnusableStateError):
        file.read()
