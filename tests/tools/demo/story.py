"""The scenes in order. Each prints what it does and what it observes, and checks the result."""

from __future__ import annotations

import os
import re
import sys
import threading
import time
from dataclasses import dataclass

from tests.support.lab import Daemon, Network
from tests.support.lab.daemon import KUBEPROXY
from tests.support.lab.node import CLIENT_V4, NODE_V4
from tests.support.lab.privilege import in_user_namespace
from tests.tools.demo.cast import BACKEND_PORT, SERVICE, Cast, Tally, ask

LOGGED_WITHIN_S = 30
"""The daemon looks for ejected endpoints every five seconds."""
KERNEL_WITHIN_S = 15
"""A start waits ten seconds at most for the rescue."""
EXACT = ("--workers=1",)
"""A single worker has an exact rotation. Each worker has its own, so several together are not exact."""


@dataclass(slots=True)
class Narrator:
    """Prints the scenes and remembers whether every check held."""

    held: bool = True

    def scene(self, text: str) -> None:
        """Print what is done now."""
        print(f"\n{text}", flush=True)

    def seen(self, text: object) -> None:
        """Print an observation."""
        print(f"    {text}", flush=True)

    def check(self, claim: str, holds: bool) -> None:
        """Print a check and its result."""
        self.held = self.held and holds
        print(f"    {'ok    ' if holds else 'FAILED'} {claim}", flush=True)


def set_up(tell: Narrator, cast: Cast) -> None:
    """Start the backends and write the manifest."""
    tell.scene("1. Hosts made of network namespaces: a node, a client in front of it, four pods behind it.")
    tell.seen(f"node {NODE_V4}, client {CLIENT_V4}, pods {Network.pod_v4(0)} to {Network.pod_v4(3)}")
    tell.scene("2. A small HTTP server in each of three pods, which answers with its name, and a manifest:")
    names = [cast.start_backend(index) for index in range(3)]
    cast.write_manifest(range(3))
    tell.seen(f"Service hello at {SERVICE[0]}:{SERVICE[1]}, endpoints {', '.join(names)} on port {BACKEND_PORT}")


def kernel_leads(tell: Narrator, cast: Cast) -> None:
    """The kernel path begins when failures can be rescued there."""
    deadline = time.monotonic() + KERNEL_WITHIN_S
    while not (lines := _lines(cast, "data path")) and time.monotonic() < deadline:
        time.sleep(0.1)
    tell.seen(lines[0] if lines else "no data path in the status")
    tell.check("the kernel leads connections straight to the endpoints", "kernel" in " ".join(lines))


def even_spread(tell: Narrator, cast: Cast, *, in_turn: bool) -> None:
    """Requests from the client and from the node."""
    for number, host, origin in ((4, cast.client, "the client host"), (5, cast.node, "the node itself")):
        tell.scene(f"{number}. Thirty requests from {origin} to {SERVICE[0]}:{SERVICE[1]}; which backend answered?")
        tally = ask(host, 30)
        tell.seen(tally)
        tell.check("every request was answered", not tally.failures)
        _check_shares(tell, tally, ("pod-1", "pod-2", "pod-3"), in_turn=in_turn)
    seen = ask(cast.client, 1, path="/client")
    tell.seen(f"one more from the client host: the endpoint sees its client as {seen}")
    if in_turn:
        tell.check("that is an address of the node", not seen.failures and CLIENT_V4 not in seen.answers)
    else:
        tell.check("that is the client's own address", set(seen.answers) == {CLIENT_V4})


def _check_shares(tell: Narrator, tally: Tally, names: tuple[str, ...], *, in_turn: bool) -> None:
    """In user space a worker takes endpoints in turn; the kernel draws one for each connection."""
    if in_turn:
        tell.check("ten by each of the three", tally.answers == dict.fromkeys(names, 10))
    else:
        tell.check("each of the three, drawn at random", set(tally.answers) == set(names))


def backend_dies(tell: Narrator, cast: Cast, daemon: Daemon) -> None:
    """A backend ends between two requests; the manifest still has it."""
    tell.scene(
        "6. Sixty more from the client; after twenty of them pod-2's server is killed (SIGKILL).\n"
        "   The manifest still names it: kubeproxy has to find out by itself."
    )
    before = ask(cast.client, 20)
    cast.kill_backend("pod-2")
    after = ask(cast.client, 40)
    tell.seen(f"before: {before}")
    tell.seen(f"after:  {after}")
    tell.check("no request failed", not before.failures and not after.failures)
    tell.check("afterwards the other two answered", set(after.answers) == {"pod-1", "pod-3"})
    # The log reports an endpoint after its second failure: many a pod that ends fails once.
    deadline = time.monotonic() + LOGGED_WITHIN_S
    while "endpoint ejected" not in daemon.log() and time.monotonic() < deadline:
        ask(cast.client, 1)
    lines = [line for line in daemon.log().splitlines() if "endpoint ejected" in line]
    tell.seen(f"log:    {_plain(lines[0]) if lines else 'nothing'}")
    tell.check("the log names the endpoint", any(Network.pod_v4(1) in line for line in lines))
    while Network.pod_v4(1) not in (row := _row(cast)) and time.monotonic() < deadline:
        time.sleep(0.2)  # a status may show what was read two seconds ago
    tell.seen(f"status: {row or 'nothing'}")
    tell.check("the status names it, too", Network.pod_v4(1) in row)


def _status(cast: Cast, *words: str) -> str:
    """What `kubeproxy status` prints on the node."""
    return cast.node.run([KUBEPROXY, "status", *words], check=False).stdout


def _row(cast: Cast) -> str:
    """The Service in the table of all."""
    heads, *rows = [it for it in _status(cast).splitlines() if it.startswith("STATE") or "default/hello" in it] or [""]
    if not rows:
        return ""
    state, name, *_ = rows[0].split()
    return f"{name} is {state}: {rows[0][heads.find('NOTE') :].strip()}"


def _lines(cast: Cast, words: str) -> list[str]:
    """Lines of the Service's status that begin with these words."""
    found = (" ".join(line.split()) for line in _status(cast, "hello").splitlines())
    return [line for line in found if line.startswith(words)]


def _plain(line: str) -> str:
    """A line of the log without time and colours."""
    return re.sub(r"\x1b\[[0-9;]*m", "", line).partition(" ")[2].strip()


def manifest_changes(tell: Narrator, cast: Cast, *, in_turn: bool) -> None:
    """A new pod replaces the dead one while requests continue."""
    tell.scene("7. A server starts in the fourth pod, and the manifest is edited: pod-4 in the place of pod-2.")
    cast.start_backend(3)
    cast.write_manifest((0, 2, 3))
    edited = time.monotonic()
    meanwhile = Tally()
    while "pod-4" not in meanwhile.answers and time.monotonic() < edited + 10:
        ask(cast.client, 1, meanwhile)
    arrived = "pod-4" in meanwhile.answers
    if arrived:
        tell.seen(f"pod-4 first answered {1000 * (time.monotonic() - edited):.0f} ms after the edit")
    tell.check("the change arrived", arrived)
    tell.check("no request failed meanwhile", not meanwhile.failures)
    tally = ask(cast.client, 30)
    tell.seen(tally)
    _check_shares(tell, tally, ("pod-1", "pod-3", "pod-4"), in_turn=in_turn)


def stop(tell: Narrator, cast: Cast, daemon: Daemon) -> None:
    """SIGTERM during an answer, then cleanup."""
    tell.scene("8. A request that takes a second is under way when kubeproxy gets SIGTERM.")
    slow = Tally()
    asking = threading.Thread(target=ask, args=(cast.client, 1, slow), kwargs={"path": "/slow"})
    asking.start()
    # Long enough for the request to be on its way, short enough for its answer not to be.
    time.sleep(0.3)
    status = daemon.terminate()
    asking.join()
    tell.seen(f"answered by: {slow}")
    tell.check("the answer arrived whole", sum(slow.answers.values()) == 1)
    tell.check(f"kubeproxy ended with exit status {status}", status == 0)
    tell.scene("9. kubeproxy cleanup takes its rules out of the kernel.")
    done = daemon.cleanup()
    listings = [cast.node.run(command).stdout for command in (["nft", "list", "ruleset"], ["iptables-legacy-save"])]
    left = [line for listing in listings for line in listing.splitlines() if "kube" in line.lower()]
    tell.seen(f"lines that name us in what nft and iptables list: {len(left)}")
    tell.check("nothing is left behind", done.returncode == 0 and not left)


def keep(cast: Cast, daemon: Daemon) -> bool:
    """Print how to use the demo and wait for Ctrl-C. Whether the daemon ran until then."""
    me = os.getpid()
    user = f"--user=/proc/{me}/ns/user --preserve-credentials " if in_user_namespace() else ""

    def on(host_fd: int) -> str:
        return f"nsenter {user}--net=/proc/{me}/fd/{host_fd}"

    print(
        f"""
It is all still running. In another terminal:

    from the client     {on(cast.client.fd)} curl -s http://{SERVICE[0]}/
    on the node         export NODE="{on(cast.node.fd)}"
                        $NODE curl -s http://{SERVICE[0]}/
    what it does        $NODE {KUBEPROXY} status
                        $NODE {KUBEPROXY} status --watch
    a connection's path $NODE {KUBEPROXY} trace {SERVICE[0]}:{SERVICE[1]}
    its rules           $NODE nft list ruleset
    its health          $NODE curl -s http://127.0.0.1:10256/readyz
    its metrics         $NODE curl -s http://127.0.0.1:10249/metrics
    its log             tail -f {daemon.log_path}
    change something    edit {cast.manifests / "hello.yaml"}
    kill pod-1's server kill -9 {cast.backends["pod-1"].pid}

Ctrl-C ends it.""",
        flush=True,
    )
    try:
        status = daemon.process.wait()
    except KeyboardInterrupt:
        print("\nStopping.", flush=True)
        return daemon.terminate() == 0
    print(f"kubeproxy ended by itself, with status {status}")
    return False


def tell(cast: Cast, *, netfilter: str, data_path: str, keep_running: bool) -> bool:
    """Run all scenes; whether every check held."""
    narrator, in_turn = Narrator(), data_path == "userspace"
    options = (*EXACT, f"--data-path={data_path}")
    set_up(narrator, cast)
    narrator.scene("3. kubeproxy run on the node, with real netfilter there.")
    began = time.monotonic()
    with Daemon(cast.node, manifests=cast.manifests, netfilter=netfilter, options=options) as daemon:
        narrator.seen(f"ready after {time.monotonic() - began:.1f} s")
        if choice := re.search(r'packet filter choice="([^"]+)"', daemon.log()):
            narrator.seen(f"packet filter: {choice[1]}")
        try:
            if not in_turn:
                kernel_leads(narrator, cast)
            even_spread(narrator, cast, in_turn=in_turn)
            backend_dies(narrator, cast, daemon)
            manifest_changes(narrator, cast, in_turn=in_turn)
            if keep_running:
                narrator.held = keep(cast, daemon) and narrator.held
            else:
                stop(narrator, cast, daemon)
        finally:
            if not narrator.held:
                print(f"\nWhat kubeproxy logged:\n{daemon.log()}", file=sys.stderr)
    return narrator.held
