"""Sends an operator's order from a command to the owner of the node, over the owner's control socket.

The command proves CAP_NET_ADMIN in the same way as a new instance, for this purpose and connection only
(`peer_capability`)::

    command   {"type": "order", "action": "eject", "endpoint": "10.0.0.1:80", "for_s": 600.0, "caller": "root, pid 42"}
    owner     {"type": "prove", …}    and a challenge: order
    command   {"type": "proof"}
    owner     {"type": "done", "request": "order"}, or {"type": "refused", "request": "order", "reason": "…"}
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from kubeproxy.daemon.takeover.control_socket import PREFIX, connect
from kubeproxy.daemon.takeover.protocol import (
    ANSWERS,
    FIRST_ANSWERS,
    Busy,
    Order,
    Proof,
    Refused,
    receive,
    receive_first,
    send,
    send_first,
)
from kubeproxy.dataplane.workers.takeover_messages import LINE_BYTES, Done
from kubeproxy.model.errors import KubeproxyError
from kubeproxy.runtime import peer_capability
from kubeproxy.runtime.abstract_sockets import users
from kubeproxy.runtime.peer_capability import Purpose

ANSWER_S: Final = 10.0
"""How long the owner may take until the order is in force."""


async def give(order: Order, *, within_s: float = ANSWER_S, prefix: str = PREFIX) -> None:
    """Give an order to the owner of this node, and wait up to `within_s` seconds until it is in force. Raise
    KubeproxyError if there is no owner, or if the owner refuses."""
    faults: list[str] = []
    for name, uid in sorted(users(prefix).items(), reverse=True):
        try:
            reason = await _give(order, name, uid, within_s)
        except (OSError, ValueError) as error:
            faults.append(f"{name}: {str(error) or repr(error)}")
            continue
        if reason:
            raise KubeproxyError(reason)
        return
    raise KubeproxyError("; ".join(faults) or "no kubeproxy runs in this network namespace")


async def _give(order: Order, name: str, uid: int, within_s: float) -> str:
    """Give an order to one control process. Return an empty text, or the reason if the process refuses.

    Raise OSError or ValueError if there is no valid answer.
    """
    with _as_user(uid):
        sock = await connect(name, waits_for_room=False)
    end = sock.close
    try:
        async with asyncio.timeout(within_s):
            send_first(sock, order)
            first, descriptors = await receive_first(sock, FIRST_ANSWERS)
            proven = [peer_capability.answer(descriptor, Purpose.ORDER, name) for descriptor in descriptors]
            if isinstance(first, Busy):
                raise ConnectionRefusedError("it does not own this node now")
            if proven != [True]:
                return "this command has no CAP_NET_ADMIN here: run it as root"
            reader, writer = await asyncio.open_unix_connection(sock=sock, limit=LINE_BYTES)
            end = writer.close
            await send(writer, Proof())
            match await receive(reader, ANSWERS):
                case Done():
                    return ""
                case Refused(reason=reason):
                    return reason
                case _:
                    raise ConnectionResetError("it closed the connection")
    finally:
        end()


@contextmanager
def _as_user(uid: int) -> Iterator[None]:
    """Act as the daemon's user while connecting, because the daemon ignores connections from other users. Only the
    proof itself needs root."""
    own = os.geteuid()
    if uid != own:
        os.seteuid(uid)
    try:
        yield
    finally:
        if uid != own:
            os.seteuid(own)
