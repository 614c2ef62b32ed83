"""Proxy ports: never allocated twice, skipped when another process has them, used again late."""

from __future__ import annotations

import errno

import pytest

from kubeproxy.dataplane.interface import Reservation
from kubeproxy.model import Address, Protocol
from kubeproxy.proxier.port_allocator import NoPortError, PortRange, Ports
from tests.support.doubles.data_plane import FakePortReserver

ANY4, ANY6 = Address("0.0.0.0"), Address("::")
TCP, UDP = Protocol.TCP, Protocol.UDP


def take(ports: Ports, count: int, protocol: Protocol = TCP) -> list[Reservation]:
    """So many reservations."""
    return [ports.reserve(protocol, ANY4) for _ in range(count)]


class TestRange:
    def test_a_range_of_one_port_is_allocated_once_and_again_after_its_release(self) -> None:
        """kube-proxy's TestRangeAllocatorFullyAllocated."""
        ports = Ports(FakePortReserver(), PortRange(1, 1))
        (only,) = take(ports, 1)
        with pytest.raises(NoPortError, match="range 1-1 are taken"):
            ports.reserve(TCP, ANY4)
        ports.release(TCP, only)
        assert ports.reserve(TCP, ANY4).port == 1

    def test_all_ports_of_a_range_are_allocated_once(self) -> None:
        """kube-proxy's TestRangeAllocator_RandomishAllocation."""
        ports = Ports(FakePortReserver(), PortRange(1, 100))
        assert sorted(reservation.port for reservation in take(ports, 100)) == list(range(1, 101))
        with pytest.raises(NoPortError):
            ports.reserve(TCP, ANY4)

    def test_a_released_port_is_used_again_last(self) -> None:
        ports = Ports(FakePortReserver(), PortRange(1, 4))
        first, second = take(ports, 2)
        ports.release(TCP, second)
        ports.release(TCP, first)
        assert [reservation.port for reservation in take(ports, 4)] == [3, 4, 2, 1]

    def test_ports_of_other_processes_are_skipped_and_used_when_freed(self) -> None:
        reserver = FakePortReserver()
        reserver.taken = {(TCP, 1), (TCP, 3)}
        ports = Ports(reserver, PortRange(1, 4))
        assert [reservation.port for reservation in take(ports, 2)] == [2, 4]
        with pytest.raises(NoPortError, match="2 of them by other processes"):
            ports.reserve(TCP, ANY4)
        reserver.taken.clear()
        assert {reservation.port for reservation in take(ports, 2)} == {1, 3}

    def test_one_number_serves_both_protocols_but_not_both_families(self) -> None:
        ports = Ports(FakePortReserver(), PortRange(1, 2))
        assert ports.reserve(TCP, ANY4).port == ports.reserve(UDP, ANY4).port == 1
        assert ports.reserve(TCP, ANY6).port == 2

    @pytest.mark.parametrize("number", [errno.EMFILE, errno.EADDRNOTAVAIL])
    def test_an_error_for_all_ports_is_reported_and_loses_no_port(self, number: int) -> None:
        reserver = FakePortReserver()
        reserver.error = OSError(number, "no")
        ports = Ports(reserver, PortRange(1, 2))
        with pytest.raises(NoPortError, match=r"cannot bind a proxy port at 0\.0\.0\.0"):
            ports.reserve(TCP, ANY4)
        reserver.error = None
        assert {reservation.port for reservation in take(ports, 2)} == {1, 2}


class TestChangeOfRange:
    def test_ports_in_use_outside_a_new_range_stay_and_are_not_used_again(self) -> None:
        ports = Ports(FakePortReserver(), PortRange(1, 1))
        (old,) = take(ports, 1)
        ports.use_range(PortRange(5, 5))
        assert ports.reserve(TCP, ANY4).port == 5
        ports.release(TCP, old)
        with pytest.raises(NoPortError):
            ports.reserve(TCP, ANY4)

    def test_ports_in_use_inside_a_new_range_are_not_allocated_again(self) -> None:
        reserver = FakePortReserver()
        ports = Ports(reserver, PortRange(1, 2))
        first, _ = take(ports, 2)
        ports.use_range(PortRange(1, 3))
        assert ports.reserve(TCP, ANY6).port == 3
        with pytest.raises(NoPortError):
            ports.reserve(TCP, ANY6)
        ports.release(TCP, first)
        assert ports.reserve(TCP, ANY6).port == 1
        with pytest.raises(NoPortError):
            ports.reserve(TCP, ANY6)

    def test_a_port_freed_before_its_turn_is_allocated_once(self) -> None:
        ports = Ports(FakePortReserver(), PortRange(1, 3))
        _, _, third = take(ports, 3)
        ports.use_range(PortRange(2, 4))
        four = ports.reserve(TCP, ANY4)
        ports.release(TCP, third)
        assert four.port == 4
        assert ports.reserve(TCP, ANY4).port == 3
        with pytest.raises(NoPortError):
            ports.reserve(TCP, ANY4)


class TestKernelsChoice:
    def test_the_kernel_chooses(self) -> None:
        ports = Ports(FakePortReserver(kernel_choice=iter([40000, 50000])), None)
        assert [reservation.port for reservation in take(ports, 2)] == [40000, 50000]

    def test_a_number_held_in_the_other_family_is_not_taken(self) -> None:
        reserver = FakePortReserver(kernel_choice=iter([40000, 40000, 50000]))
        ports = Ports(reserver, None)
        assert ports.reserve(TCP, ANY4).port == 40000
        assert ports.reserve(TCP, ANY6).port == 50000
        assert len(reserver.held) == 2

    def test_a_port_just_released_is_avoided_while_there_are_others(self) -> None:
        reserver = FakePortReserver(kernel_choice=iter([40000, 40000, 50000]))
        ports = Ports(reserver, None)
        ports.release(TCP, ports.reserve(TCP, ANY4))
        assert ports.reserve(TCP, ANY4).port == 50000

    def test_a_recent_port_is_used_when_there_are_no_others(self) -> None:
        reserver = FakePortReserver(kernel_choice=iter([40000, 40000]))
        ports = Ports(reserver, None)
        ports.release(TCP, ports.reserve(TCP, ANY4))
        assert ports.reserve(TCP, ANY4).port == 40000
        with pytest.raises(NoPortError, match="the kernel has no free TCP port"):
            ports.reserve(TCP, ANY4)

    def test_only_numbers_of_the_other_family_are_none(self) -> None:
        reserver = FakePortReserver(kernel_choice=iter([40000, 40000]))
        ports = Ports(reserver, None)
        ports.reserve(TCP, ANY4)
        with pytest.raises(NoPortError):
            ports.reserve(TCP, ANY6)
        assert list(reserver.held) == [(TCP, ANY4, 40000)]
