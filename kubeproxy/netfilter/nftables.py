"""The nftables adapter: one table of our own, changed by one ``nft -f -`` per apply."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from itertools import islice

import msgspec
import structlog

from kubeproxy.errors import KernelError
from kubeproxy.netfilter import nft_table
from kubeproxy.netfilter.nft_table import TABLE, Table
from kubeproxy.netfilter.ruleset import RuleSet

log = structlog.get_logger(__name__)

_ATTEMPTS = 3
"""From belief, from the kernel's own word, and once more for somebody who changed our table in between."""


class Nftables:
    """Keeps table ``inet kubeproxy`` equal to a rule set. Needs ``nft`` and CAP_NET_ADMIN."""

    name = "nftables"

    def __init__(self, *, nft: str = "nft", timeout_s: float = 30.0) -> None:
        self._nft = nft
        self._timeout_s = timeout_s
        # What the kernel has as far as we know; None: unknown.
        self._believed: Table | None = None

    async def probe(self) -> None:
        """Have the kernel check our table without making it; KernelError tells why it would not take it."""
        remake = f"add table {TABLE}\n{nft_table.DELETION}{nft_table.creation()}"
        await self._run("-c", "-f", "-", commands="".join([remake, *nft_table.difference(nft_table.EMPTY, RuleSet())]))

    async def apply(self, wanted: RuleSet, *, verify: bool) -> bool:
        """See `Netfilter.apply`."""
        have = None if verify else self._believed
        for attempt in range(_ATTEMPTS):
            believed = have is not None
            steps = nft_table.difference(have or await self._read(), wanted)
            self._believed = None
            try:
                if steps:
                    await self._commit(steps)
            except KernelError as error:
                if attempt == _ATTEMPTS - 1:
                    raise
                have = None
                log.warning("transaction refused, reading the kernel's rules", believed=believed, reason=str(error))
                continue
            self._believed = Table.of(wanted)
            return bool(steps)
        raise AssertionError("unreachable")

    async def cleanup(self) -> bool:
        """See `Netfilter.cleanup`."""
        self._believed = None
        if await self._read() is None:
            return False
        await self._run("-f", "-", commands=f"add table {TABLE}\n{nft_table.DELETION}")
        return True

    async def close(self) -> None:
        """See `Netfilter.close`."""

    async def _read(self) -> Table | None:
        """The table in the kernel; None when there is none."""
        try:
            listing = await self._run("-j", "list", "table", *TABLE.split())
        except _NotFound:
            return None
        try:
            return nft_table.parse(listing)
        except msgspec.MsgspecError as error:
            raise KernelError(
                f"`nft -j list table {TABLE}` printed what this version does not understand: {error}; see whether "
                f"`nft --version` was built with JSON, or delete the table by `nft delete table {TABLE}`"
            ) from error

    async def _commit(self, steps: Sequence[str]) -> None:
        try:
            await self._run("-f", "-", commands="".join(steps))
        except _TooLong:
            # An unprivileged user namespace cannot have the netlink buffer that thousands of elements need at once.
            rest = iter(steps)
            while batch := list(islice(rest, 2)):
                await self._run("-f", "-", commands="".join(batch))

    async def _run(self, *arguments: str, commands: str = "") -> bytes:
        """Run nft; what it printed, or a KernelError that tells what it said."""
        shown = " ".join((self._nft, *arguments))
        try:
            process = await asyncio.create_subprocess_exec(
                self._nft,
                *arguments,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},
            )
        except OSError as error:
            raise KernelError(
                f"cannot run {self._nft!r}: {error.strerror}; install nftables, or use --netfilter iptables"
            ) from error
        try:
            async with asyncio.timeout(self._timeout_s):
                output, complaint = await process.communicate(commands.encode())
        except TimeoutError as error:
            raise KernelError(f"`{shown}` did not end within {self._timeout_s:g} s; it was killed") from error
        finally:
            if process.returncode is None:
                process.kill()
                await process.wait()
        if process.returncode == 0:
            return output
        said = complaint.decode(errors="replace").strip() or f"exit status {process.returncode}, without a word"
        if "Operation not permitted" in said or "you must be root" in said:
            raise KernelError(f"`{shown}`: {_first_line(said)}; it needs CAP_NET_ADMIN (root, or the capability)")
        kind = _NotFound if "No such file or directory" in said else _TooLong if "Message too long" in said else None
        raise (kind or KernelError)(f"`{shown}`: {_shorten(said)}")


class _NotFound(KernelError):
    """The table or an element is not there."""


class _TooLong(KernelError):
    """The transaction does not fit in the socket's buffer."""


def _first_line(text: str) -> str:
    return text.partition("\n")[0]


def _shorten(text: str) -> str:
    """nft repeats the faulty command, which may hold thousands of elements."""
    lines = [line for line in text.splitlines() if line.startswith(("Error", "netlink", "internal", "/dev/stdin"))]
    shown = "; ".join(lines[:3] or [_first_line(text)])
    return shown[:500]
