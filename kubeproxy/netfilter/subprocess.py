"""Running a netfilter program to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading

from kubeproxy.model.errors import KernelError


class CommandFailed(KernelError):
    """A program ended with another exit status than 0; `shown` is how it was called, `said` what it wrote
    to stderr."""

    def __init__(self, shown: str, said: str) -> None:
        super().__init__(f"`{shown}`: {said[:500]}")
        self.shown = f"`{shown}`"
        self.said = said


async def run(*command: str, commands: str = "", timeout_s: float) -> bytes:
    """Run a program that reads `commands`; what it printed. CommandFailed when it fails, another KernelError when it
    cannot be started or does not end in time (it is killed then, and so it is when nobody waits for it any more)."""
    program = _Program(command)
    # In a thread: uvloop's pipes raise when a program ends before it has read what it was told.
    try:
        return await asyncio.to_thread(program.run, commands.encode(), timeout_s)
    except asyncio.CancelledError:
        program.kill()
        raise
    except RuntimeError as error:  # it waits for a thread all the same
        program.kill()
        raise KernelError(f"cannot run {command[0]}: {error}; raise the limit on processes") from error


class _Program:
    """Run once, in a thread; killed from any."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = threading.Event()

    def kill(self) -> None:
        self._killed.set()
        if self._process is not None:
            self._process.kill()

    def run(self, commands: bytes, timeout_s: float) -> bytes:
        shown = " ".join(self._command)
        if self._killed.is_set():
            raise KernelError(f"`{shown}` was not wanted any more")
        try:
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},  # what it says is compared
            )
        except FileNotFoundError as error:
            name = self._command[0]
            raise KernelError(f"cannot run {name}: {error.strerror}; is it installed and in PATH?") from error
        except OSError as error:
            raise KernelError(f"cannot run {self._command[0]}: {error.strerror}") from error
        if self._killed.is_set():
            process.kill()
        with process:
            try:
                printed, said = process.communicate(commands, timeout_s)
            except subprocess.TimeoutExpired as error:
                raise KernelError(f"`{shown}` did not end within {timeout_s:g} s; it was killed") from error
            finally:
                process.kill()
        if process.returncode != 0:
            words = said.decode(errors="replace").strip()
            raise CommandFailed(shown, words or f"exit status {process.returncode}, without a word")
        return printed
