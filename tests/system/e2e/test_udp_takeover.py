"""UDP clients that keep their sockets while one daemon takes the place of another."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.system.e2e.conftest import PATHS
from tests.system.e2e.full_services import Whole, start_mirrors
from tests.system.e2e.stage import QUICK, Stage
from tests.system.e2e.udp_clients import Loyal

pytestmark = pytest.mark.netns

WHOLE = Whole(1)


@pytest.mark.parametrize("netfilter", PATHS)
def test_a_client_that_keeps_its_socket_is_served_by_a_successor(stage: Stage, netfilter: str) -> None:
    start_mirrors(stage)
    stage.write(WHOLE.name, *WHOLE.objects(0, 1))
    with ExitStack() as held:
        loyal = Loyal(stage, WHOLE, held)
        # Another range of proxy ports each time: the flows of the last daemon lead nowhere.
        for turn, ports in enumerate(("41000-41099", "42000-42099", "43000-43099", "44000-44099")):
            daemon = stage.daemon(QUICK, f"--proxy-port-range={ports}", netfilter=netfilter)
            loyal.await_service(f"daemon {turn}")
            assert " error " not in daemon.log(), daemon.log()
            match turn:
                case 0:  # the control process alone: its workers serve until the next one relieves them
                    daemon.process.kill()
                    daemon.process.wait()
                    loyal.await_service("orphaned workers")
                case 1:
                    daemon.close()
                case _:
                    assert daemon.terminate() == 0
