"""Carries out changes of our table. Changes of elements alone go through netlink, and all others through the program
nft."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
from collections.abc import Callable, Sequence
from typing import TypeVar

from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.nftables.element_socket import ElementSocket
from kubeproxy.netfilter.nftables.elements import Batch
from kubeproxy.netfilter.nftables.reading import TableReader
from kubeproxy.netfilter.subprocess import CommandFailedError, run
from kubeproxy.runtime.threads import ThreadNotStartedError, in_thread

R = TypeVar("R")


class NotFoundError(KernelError):
    """Raised if the table or an element does not exist."""


class OccupiedError(KernelError):
    """Raised if an element that is added exists with another value."""


class TransactionTooLongError(KernelError):
    """Raised if the transaction does not fit into the socket's buffer."""


class NftCommands:
    """Changes and reads the table. The methods raise KernelError if they fail."""

    def __init__(self, *, nft: str = "nft", timeout_s: float = 30.0) -> None:
        self._nft = nft
        self._timeout_s = timeout_s
        self._socket: ElementSocket | None = None
        """The socket, opened when it is first used."""

    async def run(self, *arguments: str, commands: str = "") -> bytes:
        """Run the program nft, and return its output."""
        try:
            return await run(self._nft, *arguments, commands=commands, timeout_s=self._timeout_s)
        except CommandFailedError as error:
            raise _explained(error) from error

    async def read(self, read: Callable[[TableReader], R]) -> R:
        """Call `read` with a netlink socket in a thread, and return its result. When the process exits, it does not
        wait for this thread."""

        def work() -> R:
            with contextlib.closing(reader):
                return read(reader)

        try:
            reader = TableReader()
            return await in_thread(work)
        except OSError as error:
            raise refused(error, "to list the table") from error
        except ThreadNotStartedError as error:
            reader.close()
            raise KernelError(f"cannot read the rules: {error}") from error
        except (KeyError, TypeError, ValueError, struct.error) as error:
            raise KernelError(f"the table has sets of another form than ours ({error!r})") from error

    async def change_elements(self, changes: Sequence[Batch]) -> None:
        """Make these changes as one transaction, without the program nft."""
        try:
            if self._socket is None:
                self._socket = ElementSocket()
            await asyncio.to_thread(self._socket.transact, changes)
        except OSError as error:
            raise refused(error, "these elements") from error
        except RuntimeError as error:  # No thread can be started.
            raise KernelError(f"cannot change the rules: {error}; raise the limit on processes") from error

    async def close(self) -> None:
        """Close the socket."""
        if self._socket is not None:
            await asyncio.to_thread(self._socket.close)


def refused(error: OSError, what: str) -> KernelError:
    """Return a KernelError for a refusal by netlink. `what` names what was refused."""
    text = f"nf_tables refuses {what}: {error.strerror or error}"
    if error.errno == errno.EPERM:
        return KernelError(f"{text}; it needs CAP_NET_ADMIN (root, or the capability)")
    if error.errno == errno.ENOENT:
        return NotFoundError(text)
    if error.errno == errno.EEXIST:
        return OccupiedError(text)
    return TransactionTooLongError(text) if error.errno == errno.EMSGSIZE else KernelError(text)


def _explained(error: CommandFailedError) -> KernelError:
    if "Operation not permitted" in error.stderr or "you must be root" in error.stderr:
        return KernelError(f"{_shorten(error)}; it needs CAP_NET_ADMIN (root, or the capability)")
    if "No such file or directory" in error.stderr:
        return NotFoundError(_shorten(error))
    if "File exists" in error.stderr:
        return OccupiedError(_shorten(error))
    if "Message too long" in error.stderr:
        return TransactionTooLongError(_shorten(error))
    return KernelError(_shorten(error))


def _shorten(error: CommandFailedError) -> str:
    """Return the error without the repeated command, which may have thousands of elements."""
    lines = [line for line in error.stderr.splitlines() if "Error" in line]
    return f"{error.command_line}: {'; '.join(lines[:3])}" if lines else str(error)
