"""The filter of system calls, by an interpreter of its program; `confined` tries it in the kernel."""

from __future__ import annotations

import functools
import re
import struct
from pathlib import Path

import pytest

from kubeproxy.runtime.seccomp import MACHINES, Machine, program, refused
from kubeproxy.runtime.system_calls import FILES, INSPECTED, KERNEL, PAIRS, PROCESSES, SOCKETS, UNKNOWN_FROM

ALLOW, EPERM, ENOSYS, KILL = 0x7FFF0000, 0x00050001, 0x00050026, 0x80000000
PID = 4711


@functools.cache
def instructions(machine: Machine, sockets: bool) -> list[tuple[int, ...]]:
    return list(struct.iter_unpack("=HBBI", program(machine, PID, sockets=sockets)))


def run(machine: Machine, number: int, *args: int, arch: int | None = None, sockets: bool = True) -> int:
    """The filter's verdict on a system call, by an interpreter of classic BPF."""
    data = struct.pack("<iIQ6Q", number, machine.arch if arch is None else arch, 0, *args, *[0] * (6 - len(args)))
    steps = instructions(machine, sockets)
    place = accumulator = 0
    while True:
        code, if_true, if_false, k = steps[place]
        place += 1
        match code:
            case 0x20:
                (accumulator,) = struct.unpack_from("<I", data, k)
            case 0x54:
                accumulator &= k
            case 0x15:
                place += if_true if accumulator == k else if_false
            case 0x35:
                place += if_true if accumulator >= k else if_false
            case 0x06:
                return int(k)
            case _:
                raise AssertionError(f"no such instruction: {code:#x}")


machines = pytest.mark.parametrize("machine", MACHINES.values(), ids=MACHINES)


def number(machine: Machine, name: str) -> int:
    return machine.numbers(INSPECTED)[name]


@machines
@pytest.mark.parametrize("sockets", [True, False])
def test_the_filter_refuses_the_listed_calls_only(machine: Machine, sockets: bool) -> None:
    listed = set(refused(machine, sockets=sockets).values())
    inspected = set(machine.numbers(INSPECTED).values())
    for call in range(UNKNOWN_FROM):
        if call not in inspected:
            assert run(machine, call, sockets=sockets) == (EPERM if call in listed else ALLOW), call
    for call in (UNKNOWN_FROM, 500, 0x40000000 + 1):
        assert run(machine, call, sockets=sockets) == ENOSYS
    assert run(machine, 1, arch=0x40000003) == KILL


@pytest.mark.parametrize(
    ("machine", "header", "define"),
    [
        ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h", r"#define __NR_(\w+)\s+(\d+)"),
        ("aarch64", "/usr/include/asm-generic/unistd.h", r"#define __NR(?:3264)?_(\w+)\s+(\d+)"),
    ],
)
def test_the_numbers_are_the_kernels(machine: str, header: str, define: str) -> None:
    if not Path(header).exists():
        pytest.skip("the kernel's headers are not installed")
    theirs = {name: int(value) for name, value in re.findall(define, Path(header).read_text())}
    newest = max(theirs.values())
    calls = {**FILES, **PROCESSES, **KERNEL, **PAIRS, **SOCKETS, **INSPECTED}
    ours = MACHINES[machine].numbers(calls)
    assert {name: value for name, value in ours.items() if value <= newest} == {
        name: value for name, value in theirs.items() if name in calls
    }


@machines
@pytest.mark.parametrize(
    ("family", "kind", "answer"),
    [
        (1, 1, ALLOW),
        (1, 2, ALLOW),
        (2, 1, ALLOW),
        (2, 2 | 0o2000000 | 0o4000, ALLOW),
        (10, 1, ALLOW),
        (10, 2, ALLOW),
        (2, 3, EPERM),  # SOCK_RAW
        (10, 3, EPERM),
        (17, 3, EPERM),  # AF_PACKET
        (17, 2, EPERM),
        (38, 5, EPERM),  # AF_ALG
        (40, 1, EPERM),  # AF_VSOCK
    ],
)
def test_the_filter_allows_tcp_udp_and_unix_sockets(machine: Machine, family: int, kind: int, answer: int) -> None:
    assert run(machine, number(machine, "socket"), family, kind) == answer


@machines
def test_the_filter_allows_sock_diag_of_netlink_only(machine: Machine) -> None:
    for protocol in range(32):
        assert run(machine, number(machine, "socket"), 16, 3, protocol) == (ALLOW if protocol == 4 else EPERM), protocol


@machines
def test_the_filter_allows_signals_to_the_process_itself_only(machine: Machine) -> None:
    assert run(machine, number(machine, "tgkill"), PID, PID, 6) == ALLOW
    assert run(machine, number(machine, "tgkill"), PID + 1, PID + 1, 9) == EPERM


@machines
@pytest.mark.parametrize(("protocol", "answer"), [(0, ALLOW), (6, ALLOW), (17, ALLOW), (132, EPERM), (262, EPERM)])
def test_the_filter_allows_no_protocol_but_tcp_and_udp(machine: Machine, protocol: int, answer: int) -> None:
    assert run(machine, number(machine, "socket"), 2, 1, protocol) == answer


@machines
def test_the_filter_allows_own_limits_only(machine: Machine) -> None:
    assert [run(machine, number(machine, "prlimit64"), pid) for pid in (0, PID, PID + 1)] == [ALLOW, ALLOW, EPERM]


@machines
def test_the_filter_allows_no_descriptor_to_signal_others(machine: Machine) -> None:
    refused_commands = [
        command for command in range(2000) if run(machine, number(machine, "fcntl"), 3, command) == EPERM
    ]
    assert refused_commands == [8, 10, 15]


@machines
def test_the_filter_allows_ioctls_of_sockets_only(machine: Machine) -> None:
    allowed = [request for request in range(0x10000) if run(machine, number(machine, "ioctl"), 3, request) == ALLOW]
    assert allowed == [0x541B, 0x5421, 0x5450, 0x5451, 0x8910, 0x8933]
