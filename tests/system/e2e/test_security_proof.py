"""The proof of CAP_NET_ADMIN cannot be borrowed, and those who cannot give it delay nobody.

The attackers are root without a capability, a confined worker, and root in a user namespace of its own.
"""

from __future__ import annotations

import contextlib
import socket
import subprocess
import sys
from collections.abc import Iterator
from itertools import takewhile

import pytest

from kubeproxy.daemon.takeover.control_socket import ControlSocket
from kubeproxy.dataplane.workers.takeover_messages import PROTOCOL
from tests.support.lab import Daemon
from tests.system.e2e import relay
from tests.system.e2e.stage import QUICK, Stage, until
from tests.system.e2e.test_restart_and_upgrade import serve
from tests.system.e2e.test_security_takeover import POWERLESS, ROOT_ELSEWHERE

pytestmark = pytest.mark.netns

CONFINED = """if True:
    import sys
    from kubeproxy.runtime import abstract_sockets, privileges, sandbox
    from tests.system.e2e import relay
    privileges.drop(privileges.FOR_DIALING)
    assert sandbox.confine(sockets=True) is None
    relay.names = lambda: sorted(abstract_sockets.listening(relay.PREFIX))  # without /proc
    relay.main(*sys.argv[1:])
"""
"""The sandbox of a worker, with code of the attacker in it."""

PLAIN = (sys.executable, "-S", "-E", relay.__file__)
ATTACKERS = {
    "powerless": (*POWERLESS, *PLAIN),
    "confined worker": (sys.executable, "-c", CONFINED),
    "root of another user namespace": (*ROOT_ELSEWHERE, *PLAIN),
}
each_attacker = pytest.mark.parametrize("attacker", ATTACKERS.values(), ids=ATTACKERS.keys())
POWERLESS_RELAY = ATTACKERS["powerless"]


@contextlib.contextmanager
def attack(stage: Stage, *command: str, **more: object) -> Iterator[subprocess.Popen[bytes]]:
    """An attack that goes on; its output can be read when it has ended."""
    process = stage.node.popen([*command], stdout=subprocess.PIPE, **more)
    try:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        yield process
    finally:
        process.kill()
        process.wait()


def output(process: subprocess.Popen[bytes]) -> str:
    """All that an attack has said."""
    process.kill()
    return process.communicate()[0].decode()


@each_attacker
@pytest.mark.parametrize(("protocol", "word"), [(-1, "stop"), (0, "hold"), (0, "take")])
def test_a_challenge_that_comes_back_is_not_answered(
    stage: Stage, attacker: tuple[str, ...], protocol: int, word: str
) -> None:
    """`protocol` is relative to the owner's."""
    daemon = serve(stage, "--workers=1", netfilter="nftables")
    process = stage.node.popen([*attacker, "reflect", str(PROTOCOL + protocol), word], stdout=subprocess.PIPE)
    with process:
        assert process.stdout is not None
        said = "".join(line.decode() for line in takewhile(b"done\n".__ne__, process.stdout))
        stage.write_service([3])
        stage.await_answers(3)  # while the attacker keeps its connection
        process.kill()
    assert "'prove'" in said, "it has got a challenge"
    assert "accepted" not in said
    assert "answered True" not in said
    assert daemon.process.poll() is None


@each_attacker
def test_a_new_instance_does_not_wait_for_one_that_borrows_its_proof(stage: Stage, attacker: tuple[str, ...]) -> None:
    """The attacker gives its challenge to the control socket of the new instance itself, and answers busy."""
    with attack(stage, *attacker, "between") as process:
        daemon = serve(stage, netfilter="nftables")
        assert "not a kubeproxy: no CAP_NET_ADMIN" in daemon.log()
        assert "answered" not in output(process)


@each_attacker
def test_a_process_between_two_instances_gains_nothing(stage: Stage, attacker: tuple[str, ...]) -> None:
    """Nor between an orphaned worker and the owner."""
    with attack(stage, *attacker, "between") as process:
        first = serve(stage, "--workers=1", netfilter="nftables")
        second = stage.daemon(QUICK, "--workers=1")
        until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
        assert first.wait() == 0
        second.process.kill()
        second.process.wait()
        third = stage.daemon(QUICK, "--workers=1")
        until(lambda: "orphaned worker has ended" in third.log(), "the orphan is relieved by the owner")
        stage.await_answers(0, 1, 2)
        assert "answered" not in output(process)
    assert "stopping" not in first.log() + third.log()


def test_a_proxy_of_another_network_namespace_proves_nothing_for_this_one(stage: Stage) -> None:
    """The attacker binds the owner's name there, where it is free, and a proxy with CAP_NET_ADMIN over both starts."""
    first = serve(stage, netfilter="nftables")
    with stage.node.entered():
        (name,) = ControlSocket().others()
    with stage.client.entered():
        elsewhere = socket.socket(socket.AF_UNIX)
    elsewhere.bind(f"\0{name}")
    elsewhere.listen()
    number = elsewhere.fileno()
    with attack(stage, *POWERLESS_RELAY, "between", str(number), pass_fds=[number]) as process:
        elsewhere.close()
        with Daemon(stage.client, manifests=stage.manifests) as second:
            assert "not a kubeproxy: no CAP_NET_ADMIN" in second.log()
            until(lambda: "takeover refused: no CAP_NET_ADMIN" in first.log(), "a challenge was passed on")
            assert "answered" not in output(process)
            second.terminate()
            second.cleanup()
    assert "new instance connected" not in first.log()


@pytest.mark.parametrize("how", [("names", "2000"), ("nag",)], ids=["silent", "ever new"])
def test_names_of_processes_that_prove_nothing_keep_no_start_waiting(stage: Stage, how: tuple[str, ...]) -> None:
    with attack(stage, *POWERLESS_RELAY, *how):
        stage.write_service([0, 1, 2])
        first = stage.daemon(QUICK, ready_within_s=30)
        stage.await_answers(0, 1, 2)
        second = stage.daemon(QUICK, ready_within_s=30)
        until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
        assert first.wait() == 0
        assert second.log().count("does not answer") < 20
