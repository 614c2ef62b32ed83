"""Security review, findings 3, 4 and 15: attacks of a local process without privileges.

The attacks are on a running proxy, its upgrade and its start; and two proxies that cannot communicate.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from kubeproxy.runtime import privileges
from tests.system.e2e import attacker, kernel_state
from tests.system.e2e.conftest import ADAPTERS, PATHS
from tests.system.e2e.stage import QUICK, Stage, until
from tests.system.e2e.test_restart_and_upgrade import NO_API_SERVER, serve

pytestmark = pytest.mark.netns

each_adapter = pytest.mark.parametrize("netfilter", ADAPTERS)

POWERLESS = ("setpriv", "--bounding-set", "-all", "--inh-caps", "-all", "--no-new-privs")
"""Root without any capability."""
ROOT_ELSEWHERE = (*POWERLESS, "unshare", "--user")
"""Root without capabilities in the host's user namespace, and with all in its own."""
UNPRIVILEGED = "65534"

ATTACK = (sys.executable, "-S", "-E", attacker.__file__)

PEER = """if True:
    import asyncio, sys
    from kubeproxy.daemon.takeover.control_socket import ControlSocket
    from kubeproxy.daemon.takeover.predecessor import greet
    from kubeproxy.daemon.takeover.protocol import Take, hello

    async def main():
        (name,) = ControlSocket().others()
        owner = await greet(name, hello("liar"))
        await owner.hold()
        print(await owner.take(Take()), flush=True)

    asyncio.run(main())
"""
"""A process with CAP_NET_ADMIN that claims the rules of the daemon."""

DEAF = """if True:
    import sys
    from kubeproxy.daemon.takeover import search, takeover
    from kubeproxy.cli.main import main

    async def greet(name, hello, **_):
        raise TimeoutError("no connection to it")

    search.greet = takeover.greet = greet
    sys.exit(main())
"""
"""The daemon, without the ability to communicate with another."""


def attack(stage: Stage, *arguments: str) -> subprocess.Popen[bytes]:
    """Start an attack that continues; returns when it has begun."""
    process = stage.node.popen([*ATTACK, *arguments], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"ready\n"
    return process


def end(process: subprocess.Popen[bytes]) -> None:
    process.kill()
    process.wait()


@each_adapter
@pytest.mark.parametrize("prefix", [POWERLESS, ROOT_ELSEWHERE], ids=["powerless", "root of another user namespace"])
def test_finding_3_root_without_capabilities_is_not_obeyed(
    stage: Stage, netfilter: str, prefix: tuple[str, ...]
) -> None:
    daemon = serve(stage, netfilter=netfilter)
    said = stage.node.run([*prefix, *ATTACK, "take"], check=False).stdout
    assert "done" not in said
    assert "stopping" not in said
    assert daemon.process.poll() is None
    stage.await_answers(0, 1, 2)
    assert "takeover refused" in daemon.log()
    assert "new instance has taken over" not in daemon.log()


@each_adapter
def test_finding_3_an_owner_stays_while_rules_lead_to_it(stage: Stage, netfilter: str) -> None:
    """Also when a process with CAP_NET_ADMIN claims the rules."""
    daemon = serve(stage, netfilter=netfilter)
    said = stage.node.run([sys.executable, "-c", PEER]).stdout
    assert "still lead" in said
    until(lambda: "new instance left before takeover" in daemon.log(), "it maintains its rules again")
    stage.write_service([3])
    stage.await_answers(3)
    assert daemon.process.poll() is None


@each_adapter
def test_finding_4_names_of_another_user_count_for_nothing(stage: Stage, netfilter: str) -> None:
    """The sockets exist before the start; they disturb neither the takeover nor the orphaned workers."""
    squatter = attack(stage, "squat", UNPRIVILEGED)
    first = serve(stage, netfilter=netfilter)
    second = stage.daemon(QUICK, "--workers=1", netfilter=netfilter)
    until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
    assert first.wait() == 0
    stage.await_answers(0, 1, 2)
    second.process.kill()
    second.process.wait()
    third = stage.daemon(QUICK, netfilter=netfilter)
    until(lambda: "orphaned worker has ended" in third.log(), "the orphan is relieved")
    stage.await_answers(0, 1, 2)
    assert "changed our packet filter" not in first.log() + third.log()
    end(squatter)


def test_finding_4_a_forged_presence_does_not_keep_a_start_waiting(stage: Stage, tmp_path: Path) -> None:
    squatter = attack(stage, "squat", UNPRIVILEGED)
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(NO_API_SERVER)
    stage.write_service([0, 1, 2])
    daemon = stage.daemon(QUICK, f"--kubeconfig={kubeconfig}")
    stage.await_answers(0, 1, 2)
    assert "still_listing=kubernetes" in daemon.log()
    end(squatter)


@each_adapter
def test_finding_4_a_full_queue_does_not_hinder_a_takeover(stage: Stage, netfilter: str) -> None:
    first = serve(stage, netfilter=netfilter)
    floods = [attack(stage, "flood", UNPRIVILEGED) for _ in range(2)]
    second = stage.daemon(QUICK, netfilter=netfilter)
    until(lambda: "new instance has taken over" in first.log(), "the first instance has handed over")
    assert "does not answer" not in second.log()
    assert first.wait() == 0
    for flood in floods:
        end(flood)
    stage.await_answers(0, 1, 2)


@pytest.mark.parametrize("netfilter", PATHS)
def test_finding_4_of_two_that_cannot_communicate_the_older_one_ends(stage: Stage, netfilter: str) -> None:
    """Otherwise both would write the rules again and again."""
    first = serve(stage, "--iptables-sync-period=2s", netfilter=netfilter)
    second = stage.daemon(QUICK, "--iptables-sync-period=2s", netfilter=netfilter, command=(sys.executable, "-c", DEAF))
    until(lambda: "another kubeproxy's rules replaced ours" in first.log(), "the older one ends")
    assert first.wait() == 0
    assert "another kubeproxy does not answer" in second.log()
    assert second.log().count("changed our packet filter") <= 1
    stage.await_answers(0, 1, 2)
    assert kernel_state.redirects(stage.node)

    def well() -> bool:
        try:
            return second.get("/healthz").status == 200
        except OSError:
            return False

    until(well, "it has got the HTTP ports")


def capabilities(process: int, thread: int | None = None) -> dict[str, int]:
    """The capabilities by set, and whether exec may add some."""
    status = Path(f"/proc/{process}/task/{thread or process}/status").read_text()
    fields = dict(line.split(":\t", 1) for line in status.splitlines() if line.startswith(("Cap", "NoNewPrivs")))
    return {name: int(value, 16) for name, value in fields.items()}


@each_adapter
def test_finding_15_started_by_root_it_keeps_what_it_needs(stage: Stage, netfilter: str) -> None:
    """In every thread, less in its workers, and also after a re-exec."""
    allowed = sum(1 << capability for capability in privileges.CONTROL)
    daemon = serve(stage, "--workers=1", netfilter=netfilter)
    pid = daemon.process.pid

    def look() -> None:
        for thread in Path(f"/proc/{pid}/task").iterdir():
            seen = capabilities(pid, int(thread.name))
            assert seen["CapEff"] == seen["CapPrm"] == seen["CapBnd"] == allowed, thread.name
            assert seen["NoNewPrivs"] == 1
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            seen = capabilities(int(child))
            assert seen["CapEff"] & ~(1 << privileges.Capability.NET_RAW) == 0
            assert seen["CapBnd"] & ~allowed == 0

    look()
    daemon.process.send_signal(signal.SIGUSR2)
    until(lambda: daemon.log().count("kubeproxy starts") == 2, "it has begun anew")
    until(lambda: "orphaned worker has ended" in daemon.log(), "the orphan has ended")
    look()
    stage.write_service([3])
    stage.await_answers(3)


def test_a_proof_takes_the_capability(stage: Stage) -> None:
    script = """if True:
        import os
        from kubeproxy.runtime.peer_capability import Challenge, Purpose, answer
        challenge = Challenge(Purpose.OWN, "x")
        print(answer(os.dup(challenge.fileno()), Purpose.OWN, "x"), challenge.answered)
    """
    answers = [
        stage.node.run([*prefix, sys.executable, "-c", script]).stdout.split()
        for prefix in ((), POWERLESS, ROOT_ELSEWHERE)
    ]
    assert answers == [["True", "True"], ["False", "False"], ["False", "False"]]
