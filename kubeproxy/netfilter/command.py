"""Running a netfilter program to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess

from kubeproxy.errors import KernelError


class CommandFailed(KernelError):
    """A program ended with another exit status than 0; `shown` is how it was called, `said` what it wrote
    to stderr."""

    def __init__(self, shown: str, said: str) -> None:
        super().__init__(f"`{shown}`: {said[:500]}")
        self.shown = f"`{shown}`"
        self.said = said


async def run(*command: str, commands: str = "", timeout_s: float) -> bytes:
    """Run a program that reads `commands`; what it printed. CommandFailed when it fails, another KernelError when it
    cannot be started or does not end in time (it is killed then)."""
    # In a thread: uvloop's pipes raise when a program ends before it has read what it was told.
    return await asyncio.to_thread(_run, command, commands.encode(), timeout_s)


def _run(command: tuple[str, ...], commands: bytes, timeout_s: float) -> bytes:
    shown = " ".join(command)
    environment = {**os.environ, "LC_ALL": "C"}  # what it says is compared
    try:
        done = subprocess.run(
            command, input=commands, capture_output=True, timeout=timeout_s, env=environment, check=False
        )
    except OSError as error:
        raise KernelError(f"cannot run {command[0]}: {error.strerror}; is it installed and in PATH?") from error
    except subprocess.TimeoutExpired as error:
        raise KernelError(f"`{shown}` did not end within {timeout_s:g} s; it was killed") from error
    if done.returncode != 0:
        said = done.stderr.decode(errors="replace").strip()
        raise CommandFailed(shown, said or f"exit status {done.returncode}, without a word")
    return done.stdout
