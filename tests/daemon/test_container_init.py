"""The first process of a container, in a PID namespace: whom it keeps, when it ends, and with which exit status."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, nullcontext
from pathlib import Path

import pytest

from kubeproxy.daemon import container_init
from kubeproxy.daemon.takeover import control_socket, reexec
from kubeproxy.dataplane.workers import main as workers
from tests.support.lab import Host
from tests.support.lab.host import can_make_hosts

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(not can_make_hosts(), reason="needs root, for a PID namespace of its own"),
]

# A shell cannot trap what was ignored when it began, as in the background of a script.
UNSHARE = ("env", "--default-signal=HUP,INT", "unshare", "--pid", "--fork", "--mount-proc", "--kill-child")
LOG_START = 'echo "start $$ $KUBEPROXY_PREVIOUS_END" >> "$0"'
ORPHAN = (
    'PATH="${0%/*}:$PATH" kubeproxy-0 100 < /dev/null > /dev/null 2>&1 & '
    "until grep -q kubeproxy-0 /proc/$!/comm; do :; done;"
)
"""A process with the name of a worker, which a link in the container's directory gives it."""


def until(condition: Callable[[], object], what: str) -> None:
    deadline = time.monotonic() + 30
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.01)


def children(pid: int) -> list[int]:
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def is_worker(pid: int) -> bool:
    return Path(f"/proc/{pid}/comm").read_text().startswith(container_init.WORKERS)


class Container:
    """`sh -c SCRIPT FILE` as the child of the first process of a PID namespace; the script writes to the file."""

    def __init__(self, script: str, file: Path) -> None:
        self.file = file
        (file.parent / "kubeproxy-0").symlink_to("/bin/sleep")
        self.process = subprocess.Popen([*UNSHARE, *container_init.command(["/bin/sh", "-c", script, str(file)])])

    @property
    def init(self) -> int:
        """The first process, by its number here."""
        return children(self.process.pid)[0]

    @property
    def starts(self) -> list[str]:
        """How the control process before each start has ended."""
        lines = self.file.read_text().splitlines() if self.file.exists() else []
        return [line.split(" ", 2)[2] for line in lines if line.startswith("start ")]

    def child(self) -> int:
        """The control process, by its number here."""
        return next(pid for pid in children(self.init) if not is_worker(pid))


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    """A network namespace, in which no other test has an instance."""
    with closing(Host("init")) as host:
        yield host


@contextmanager
def running(script: str, directory: Path, host: Host | None = None) -> Iterator[Container]:
    with host.entered() if host else nullcontext():
        container = Container(script, directory / "log")
    try:
        yield container
    finally:
        container.process.kill()
        container.process.wait()


def ends(container: Container, status: int) -> None:
    assert container.process.wait(30) == status


def test_it_passes_on_the_signals_of_the_control_process() -> None:
    assert set(reexec.SIGNALS) == container_init.PASSED_ON


def test_it_knows_the_names_of_control_processes_and_workers() -> None:
    assert f"@{control_socket.PREFIX}" == container_init.INSTANCES
    assert 'comm.write(f"kubeproxy-{number}")' in Path(workers.__file__).read_text()


def test_a_process_that_is_not_the_first_one_stays_what_it_is() -> None:
    container_init.become()


@pytest.mark.parametrize(
    ("ending", "status"), [("exit 64", 64), ("exit 1", 1), ("kill -KILL $$", 137), ("kill -ABRT $$", 134)]
)
def test_it_ends_as_the_control_process_where_there_is_nobody_to_keep(tmp_path: Path, ending: str, status: int) -> None:
    with running(f"{LOG_START}; {ending}", tmp_path) as container:
        ends(container, status)
        assert container.starts == [""]


def test_a_stop_is_passed_on_and_its_exit_status_returned(tmp_path: Path) -> None:
    """Workers do not keep it: what the control process has left then is to end."""
    script = f"trap 'exit 7' TERM; {ORPHAN} {LOG_START}; while :; do wait; done"
    with running(script, tmp_path) as container:
        until(lambda: container.starts, "it runs")
        os.kill(container.init, signal.SIGTERM)
        ends(container, 7)
        assert container.starts == [""]


def test_other_signals_are_passed_on(tmp_path: Path) -> None:
    traps = 'for name in HUP USR2; do trap "echo $name >> \\"$0\\"" $name; done; trap "exit 9" INT'
    with running(f"{traps}; {LOG_START}; {ORPHAN} while :; do wait; done", tmp_path) as container:
        until(lambda: container.starts, "it runs")
        os.kill(container.init, signal.SIGHUP)
        until(lambda: "HUP" in container.file.read_text(), "SIGHUP has arrived")
        os.kill(container.init, signal.SIGUSR2)
        until(lambda: "USR2" in container.file.read_text(), "SIGUSR2 has arrived")
        os.kill(container.init, signal.SIGINT)
        ends(container, 9)


def test_workers_outlive_a_crash_and_get_another_control_process(tmp_path: Path) -> None:
    script = f'[ -s "$0" ] || {{ {ORPHAN} }}; {LOG_START}; exec tail -f /dev/null'
    with running(script, tmp_path) as container:
        until(lambda: len(container.starts) == 1, "it runs")
        first = container.child()
        (worker,) = children(first) or [0]
        os.kill(first, signal.SIGKILL)
        until(lambda: len(container.starts) == 2, "the next one runs")
        assert container.starts == ["", "signal 9"]
        assert worker in children(container.init)
        second = container.child()
        assert second != first
        os.kill(worker, signal.SIGKILL)
        os.kill(second, signal.SIGKILL)
        ends(container, 137)


def test_a_control_process_that_cannot_start_any_more_is_tried_while_workers_live(tmp_path: Path) -> None:
    script = f'[ -s "$0" ] || {{ {ORPHAN} {LOG_START}; kill -KILL $$; }}; {LOG_START}; exit 64'
    with running(script, tmp_path) as container:
        until(lambda: container.starts[1:3] == ["signal 9", "exit status 64"], "it is tried again and again")
        (worker,) = [pid for pid in children(container.init) if is_worker(pid)]
        os.kill(worker, signal.SIGKILL)
        ends(container, 64)


@contextmanager
def instance(host: Host) -> Iterator[None]:
    """An instance in this network namespace, by its name."""
    with host.make_socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.bind(f"\0{control_socket.PREFIX}other")
        sock.listen()
        yield


def test_after_a_takeover_it_waits_for_the_end_of_the_container(tmp_path: Path, host: Host) -> None:
    """With exit status 0 at once, the kubelet would start the container again."""
    with instance(host), running(f"{LOG_START}; exit 0", tmp_path, host) as container:
        until(lambda: container.starts and children(container.process.pid) and not children(container.init), "it waits")
        assert container.process.poll() is None
        os.kill(container.init, signal.SIGTERM)
        ends(container, 0)
        assert container.starts == [""]


def test_if_the_instance_that_has_taken_over_ends_the_control_process_starts_again(tmp_path: Path, host: Host) -> None:
    """Also while workers of its own keep serving; and again, if that one yields, too."""
    script = f'{LOG_START}; {ORPHAN} [ "$(grep -c start "$0")" = 3 ] && exec tail -f /dev/null; exit 0'
    with ExitStack() as other:
        other.enter_context(instance(host))
        with running(script, tmp_path, host) as container:
            until(lambda: container.starts, "it runs")
            other.close()
            until(lambda: len(container.starts) == 3, "it runs again")
            assert container.starts == ["", container_init.DESERTED, container_init.DESERTED]
            assert container.process.poll() is None


def test_a_program_left_in_the_background_keeps_no_container(tmp_path: Path, host: Host) -> None:
    script = f"sleep 100 < /dev/null > /dev/null 2>&1 & trap 'exit 0' TERM; {LOG_START}; while :; do wait; done"
    with instance(host), running(script, tmp_path, host) as container:
        until(lambda: container.starts, "it runs")
        os.kill(container.init, signal.SIGTERM)
        ends(container, 0)
    (tmp_path / "other").mkdir()
    with running(f"sleep 100 & {LOG_START}; kill -KILL $$", tmp_path / "other") as container:
        ends(container, 137)


@pytest.mark.parametrize("stopped_before", [False, True])
def test_workers_that_another_version_has_yet_to_relieve_are_waited_for(
    tmp_path: Path, host: Host, stopped_before: bool
) -> None:
    """They have connections, which the end of the container would cut."""
    script = f"{ORPHAN} trap 'exit 0' TERM; {LOG_START}; {'while :; do wait; done' if stopped_before else 'exit 0'}"
    with instance(host), running(script, tmp_path, host) as container:
        until(lambda: container.starts, "it runs")
        if not stopped_before:
            until(lambda: len(children(container.init)) == 1, "the control process has ended")
        os.kill(container.init, signal.SIGTERM)
        until(lambda: len(children(container.init)) == 1, "the worker is left")
        time.sleep(0.2)
        assert container.process.poll() is None
        if stopped_before:
            os.kill(children(container.init)[0], signal.SIGKILL)
        else:
            os.kill(container.init, signal.SIGTERM)  # whoever repeats it does not want to wait
        ends(container, 0)


def test_a_stop_between_two_starts_ends_it(tmp_path: Path) -> None:
    script = f'[ -s "$0" ] || {{ {ORPHAN} }}; {LOG_START}; exit 3'
    with running(script, tmp_path) as container:
        until(lambda: len(container.starts) > 3, "pauses have become longer")
        os.kill(container.init, signal.SIGTERM)
        ends(container, 3)


def test_it_reaps_what_has_lost_its_parent(tmp_path: Path) -> None:
    script = f"for i in 1 2 3; do (sleep 0.01 & ) ; done; {LOG_START}; exec tail -f /dev/null"
    with running(script, tmp_path) as container:
        until(lambda: container.starts, "it runs")
        until(lambda: len(children(container.init)) == 1, "only the control process is left")


def test_it_cannot_be_killed_from_inside(tmp_path: Path) -> None:
    with running(
        f'{LOG_START}; kill -KILL 1; kill -QUIT 1; echo alive >> "$0"; exec tail -f /dev/null', tmp_path
    ) as it:
        until(lambda: it.starts and "alive" in it.file.read_text(), "it lives on")
        assert it.process.poll() is None
