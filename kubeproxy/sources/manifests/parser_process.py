"""A process that parses YAML for the control process while there is much of it, and does nothing else.

Started by `crew` as ``python -m kubeproxy.sources.manifests.parser_process NICENESS``, with one end of a socketpair as its
standard input. It imports little, so that it is there soon, and ends with the one who started it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
import sys

import msgspec

from kubeproxy.kubernetes.manifests.values import SyntaxFault, parse
from kubeproxy.runtime import privileges

HEAD = 4
"""Bytes that say how long a message is; the rest of it is MessagePack."""
ALONE_S = 60
"""A question that takes longer is not answered any more: nobody waits for so long."""

Answer = list[bytes] | None
"""A text's values as JSON; None where it has to be looked at by whoever asked."""

_PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""


def frame(message: list[bytes] | list[Answer]) -> bytes:
    """A message as it is sent: texts one way, their answers the other."""
    inside = msgspec.msgpack.encode(message)
    return len(inside).to_bytes(HEAD) + inside


def answer(text: bytes) -> Answer:
    """What a text consists of. What is wrong with one is found, and told, where its place is known."""
    try:
        return [msgspec.json.encode(value.to(object)) for value in parse(text, 1)]
    except (SyntaxFault, msgspec.MsgspecError, UnicodeError, RecursionError):
        return None


def main(niceness: int) -> None:
    """Answer until nobody asks any more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal's goes to everybody; who started us will see to it
    # Even one that is stopped, or has lost itself in a text, ends with the thread that waits for it.
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    with contextlib.suppress(OSError):  # a service manager may forbid it
        os.setpriority(os.PRIO_PROCESS, 0, os.getpriority(os.PRIO_PROCESS, 0) + niceness)
    privileges.drop()  # others' words are parsed here, by a library in C
    with open(0, "rb", closefd=False) as questions, open(0, "wb", buffering=0, closefd=False) as answers:
        while len(head := questions.read(HEAD)) == HEAD:
            texts = msgspec.msgpack.decode(questions.read(int.from_bytes(head)), type=list[bytes])
            signal.alarm(ALONE_S)
            said = memoryview(frame([answer(text) for text in texts]))
            while said:
                said = said[answers.write(said) :]
            signal.alarm(0)


if __name__ == "__main__":
    try:
        main(int(sys.argv[1]))
    except (OSError, msgspec.MsgspecError):
        sys.exit(1)  # who asked has gone, in the middle of a message
