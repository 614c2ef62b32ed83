"""Runs a netfilter program to its end."""

from __future__ import annotations

import asyncio
import os
import subprocess
import threading

from kubeproxy.model.errors import KernelError


class CommandFailedError(KernelError):
    """Raised if a program ends with an exit status other than 0. `command_line` is the command, and `stderr` is the
    program's error output."""

    def __init__(self, command_line: str, stderr: str) -> None:
        super().__init__(f"`{command_line}`: {stderr[:500]}")
        self.command_line = f"`{command_line}`"
        self.stderr = stderr


async def run(*command: str, commands: str = "", timeout_s: float) -> bytes:
    """Run a program with `commands` as its input, and return its output. Raise CommandFailedError if it fails, and
    another KernelError if it cannot be started or takes longer than `timeout_s` seconds. The program is killed if it
    takes too long, or if this call is cancelled."""
    program = _Program(command)
    # The program runs in a thread, because uvloop's pipes raise an error if a program ends before it has read all its
    # input.
    try:
        return await asyncio.to_thread(program.run, commands.encode(), timeout_s)
    except asyncio.CancelledError:
        program.kill()
        raise
    except RuntimeError as error:  # No thread can be started.
        program.kill()
        raise KernelError(f"cannot run {command[0]}: {error}; raise the limit on processes") from error


class _Program:
    """One run of a program in a thread. Any thread may kill it."""

    def __init__(self, command: tuple[str, ...]) -> None:
        self._command = command
        self._process: subprocess.Popen[bytes] | None = None
        self._killed = threading.Event()

    def kill(self) -> None:
        self._killed.set()
        if self._process is not None:
            self._process.kill()

    def run(self, commands: bytes, timeout_s: float) -> bytes:
        command_line = " ".join(self._command)
        if self._killed.is_set():
            raise KernelError(f"`{command_line}` was cancelled before it began")
        try:
            process = self._process = subprocess.Popen(
                self._command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                env={**os.environ, "LC_ALL": "C"},  # Some messages are compared, so they must be in English.
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
                printed, stderr = process.communicate(commands, timeout_s)
            except subprocess.TimeoutExpired as error:
                raise KernelError(f"`{command_line}` did not end within {timeout_s:g} s; it was killed") from error
            finally:
                process.kill()
        if process.returncode != 0:
            words = stderr.decode(errors="replace").strip()
            raise CommandFailedError(command_line, words or f"exit status {process.returncode}, no message")
        return printed
