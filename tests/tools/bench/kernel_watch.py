"""Notes when endpoints come into the kernel's maps, by its notifications."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Iterator
from typing import Self

from kubeproxy.netfilter.netlink.messages import NETLINK_NETFILTER, attributes, parse
from kubeproxy.netfilter.netlink.multicast import subscribe
from tests.support.lab import Host

_GROUP_NFTABLES = 7  # NFNLGRP_NFTABLES
_NEW, _DELETE = 10 << 8 | 12, 10 << 8 | 14  # NFT_MSG_NEWSETELEM, NFT_MSG_DELSETELEM
_RCVBUFFORCE = 33  # asm-generic/socket.h
_ROOM_BYTES = 256 << 20
_MASK = 0x3FFF  # without NLA_F_NESTED and NLA_F_NET_BYTEORDER


class KernelWatch:
    """A subscription to the transactions of a host, read by a thread. A context manager."""

    def __init__(self, host: Host) -> None:
        with host.entered():
            self._socket = subscribe(NETLINK_NETFILTER, _GROUP_NFTABLES)
        self._socket.setsockopt(socket.SOL_SOCKET, _RCVBUFFORCE, _ROOM_BYTES)
        self._socket.settimeout(0.2)
        self._times: dict[bytes, float] = {}
        self._news = threading.Condition()
        self._ended = threading.Event()
        self.changed = 0
        """Elements added and deleted so far."""
        self._thread = threading.Thread(target=self._read, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()
        self._socket.close()

    def added_at(self, address: str, within_s: float) -> float:
        """The monotonic time at which this IPv4 address became the endpoint of an element. AssertionError if it does
        not in time."""
        packed = socket.inet_aton(address)
        with self._news:
            if not self._news.wait_for(lambda: packed in self._times, within_s):
                raise AssertionError(f"{address} did not become an endpoint within {within_s} s")
            return self._times[packed]

    def _read(self) -> None:
        while not self._ended.is_set():
            with contextlib.suppress(TimeoutError):
                data = self._socket.recv(1 << 16)
                now = time.monotonic()
                with self._news:
                    for message in parse(data):
                        if message.kind in (_NEW, _DELETE):
                            self.changed += 1
                        if message.kind == _NEW:
                            self._times.update((endpoint, now) for endpoint in _endpoints(message.body[4:]))
                    self._news.notify_all()


def _endpoints(body: bytes) -> Iterator[bytes]:
    """The addresses in the values of the elements of a message."""
    for kind, elements in attributes(body):
        if kind & _MASK == 3:  # NFTA_SET_ELEM_LIST_ELEMENTS
            for _, element in attributes(elements):
                for part, value in attributes(element):
                    if part & _MASK == 2:  # NFTA_SET_ELEM_DATA
                        for inner, data in attributes(value):
                            if inner & _MASK == 1 and len(data) == 8:  # NFTA_DATA_VALUE: address and port
                                yield data[:4]
