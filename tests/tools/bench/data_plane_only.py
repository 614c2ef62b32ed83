"""Our data plane alone: no control plane, no redirect, no connection tracking. `bare.py LISTEN PORT,... TARGET...`

Beside the whole daemon it tells what the redirect costs; under a profiler it shows the byte path and nothing else.
"""

from __future__ import annotations

import asyncio
import signal
import sys

import uvloop

from kubeproxy.dataplane.in_process import LocalDataPlane
from kubeproxy.dataplane.messages import Listen, SetEndpoints
from kubeproxy.model import Address, Family, FrontendName, Protocol, ServicePortName, Target


async def main(address: str, ports: list[int], targets: list[str]) -> None:
    """Serve each port of `address` from the same port of the targets until SIGTERM."""
    plane = LocalDataPlane()
    for port in ports:
        frontend = FrontendName(ServicePortName("bench", "bare", str(port)), Family.IPV4)
        plane.reserve(Protocol.TCP, Address(address), port)
        failed = await plane.send(
            [
                Listen(frontend, Protocol.TCP, Address(address), port),
                SetEndpoints(frontend, tuple(Target(Address(target), port) for target in targets)),
            ]
        )
        if failed:
            sys.exit(str(failed))
    stopped = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stopped.set)
    await stopped.wait()
    await plane.close()


if __name__ == "__main__":
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(main(sys.argv[1], [int(port) for port in sys.argv[2].split(",")], sys.argv[3:]))
