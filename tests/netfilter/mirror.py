"""The data plane's real engine beside a fake data plane: it gets the same messages, and has to stand as a new engine
would."""

from __future__ import annotations

import random
import socket
from collections.abc import Sequence
from typing import Any

from kubeproxy.dataplane.balancing import balancer as balancing
from kubeproxy.dataplane.balancing.balancer import Balancer
from kubeproxy.dataplane.budgets.fd_budget import DescriptorBudget
from kubeproxy.dataplane.context import Context
from kubeproxy.dataplane.engine import Engine
from kubeproxy.dataplane.loop.reactor import Reactor
from kubeproxy.dataplane.messages import Listen, Message
from kubeproxy.dataplane.sockets.original_destination import key_of
from kubeproxy.dataplane.tcp.flow import send_backlogs
from kubeproxy.dataplane.tcp.listener import Listener
from kubeproxy.dataplane.tcp.shared_listener import SharedListener
from kubeproxy.dataplane.udp.sessions import DatagramListener
from kubeproxy.model import Address, Family, Protocol, family_of
from tests.support.doubles.data_plane import FakeDataPlane

CLIENTS = [Address(f"203.0.113.{number}") for number in range(1, 6)]


class Mirror:
    """An engine that listens on ports of its own on loopback, without clients."""

    def __init__(self) -> None:
        self._random = random.Random(0)
        self._reactor = Reactor()
        self._context = Context(reactor=self._reactor, budget=DescriptorBudget(1000), send=send_backlogs)
        self._engine = Engine(
            self._context,
            open_socket=_open,
            close_socket=socket.socket.close,
            rng=self._random,
        )

    def handle(self, messages: Sequence[Message]) -> None:
        """Carry out messages. Some frontends then have a client."""
        assert not self._engine.handle(messages)
        for listener in self._engine._listeners.values():
            if self._random.random() < 0.1:
                listener.balancer.pick("203.0.113.99", self._reactor.clock())

    def check(self, plane: FakeDataPlane) -> dict[object, Any]:
        """Check that the engine has what the fake data plane has. Return how it serves each frontend."""
        engine, listeners = self._engine, self._engine._listeners
        assert listeners.keys() == plane.listening.keys() | plane.joined.keys()
        keys: dict[object, dict[bytes, Listener | DatagramListener]] = {}
        for name, join in plane.joined.items():
            assert engine._joined[name] is listeners[join.listener]
            keys.setdefault(join.listener, {}).update({key_of(to): listeners[name] for to in join.destinations})
        for name, listener in listeners.items():
            if isinstance(listener, SharedListener):
                assert listener._of == keys.get(name, {})
        return {
            name: (type(listener), *_kept(listener), *_choice(listener.balancer, self._reactor.clock()))
            for name, listener in listeners.items()
            if not isinstance(listener, SharedListener)
        }

    def close(self) -> None:
        """Close all sockets."""
        self._engine.close()
        self._context.routes.close()


def _open(message: Listen) -> socket.socket:
    is_four = family_of(message.address) is Family.IPV4
    kind = socket.SOCK_DGRAM if message.protocol is Protocol.UDP else socket.SOCK_STREAM
    sock = socket.socket(socket.AF_INET if is_four else socket.AF_INET6, kind)
    sock.bind(("127.0.0.1" if is_four else "::1", 0))
    return sock


def _kept(listener: Listener | DatagramListener) -> tuple[object, ...]:
    if isinstance(listener, DatagramListener):
        return listener.preserve, listener.keeping
    return (listener._preserve,)


def _choice(balancer: Balancer, now: float) -> tuple[object, ...]:
    """Return the endpoints of a balancer, and the order in which a hash gives them to clients."""
    if balancer._packed is not None:  # They stay packed, as without clients.
        endpoints, settings = balancing._decode(balancer._packed) if balancer._packed else ((), balancer._balancing)
    else:
        endpoints, settings = tuple(balancer.endpoints), balancer._balancing
    picking = balancer
    if balancer._packed is not None:
        picking = Balancer(rng=random.Random(0))
        picking.update(endpoints, None, settings)
    orders = [picking.preview(it, now, limit=9, port=7)[1] for it in CLIENTS] if settings.scheduler.hashes else []
    return frozenset(endpoints), settings, orders, balancer._affinity.timeout_s
