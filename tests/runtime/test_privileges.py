"""What the control process keeps of its capabilities, and what programs that it starts have."""

from __future__ import annotations

import subprocess
import sys

import pytest

from kubeproxy.runtime import privileges
from kubeproxy.runtime.privileges import Capability

LOOK = """if True:
    import subprocess
    from kubeproxy.runtime import privileges
    privileges.restrict()
    print(open("/proc/self/status").read())
    print(subprocess.run(["cat", "/proc/self/status"], capture_output=True, text=True, check=True).stdout)
"""


def look(*prefix: str) -> list[dict[str, int]]:
    """Of itself, and of a program that it starts."""
    output = subprocess.run([*prefix, sys.executable, "-c", LOOK], capture_output=True, text=True, check=True).stdout
    found: list[dict[str, int]] = []
    for line in output.splitlines():
        name, _, value = line.partition(":")
        if name == "Name":
            found.append({})
        elif name in ("CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb", "NoNewPrivs"):
            found[-1][name] = int(value, 16)
    return found


def bits(*capabilities: Capability) -> int:
    return sum(1 << capability for capability in capabilities)


@pytest.mark.skipif(not privileges.held() >> 21 & 1, reason="takes every capability to give them up")
def test_root_and_its_programs_keep_the_needed_capabilities() -> None:
    kept = bits(*privileges.CONTROL)
    for seen in look():
        assert (seen["CapPrm"], seen["CapEff"], seen["CapBnd"], seen["NoNewPrivs"]) == (kept, kept, kept, 1)


@pytest.mark.skipif(not privileges.held() >> 21 & 1, reason="takes every capability to give them up")
def test_another_user_passes_ambient_capabilities_on() -> None:
    """By the ambient set, as a unit's AmbientCapabilities= does. (Root by its number only: SECBIT_NOROOT.)"""
    wanted = "-all,+net_admin,+net_raw,+sys_time"
    kept = bits(Capability.NET_ADMIN, Capability.NET_RAW)
    noroot = ("setpriv", "--securebits", "+noroot", "--inh-caps", wanted, "--ambient-caps", wanted)
    for seen in look(*noroot):
        assert (seen["CapPrm"], seen["CapEff"], seen["CapAmb"], seen["NoNewPrivs"]) == (kept, kept, kept, 1)
