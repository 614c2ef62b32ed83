"""Processes that parse YAML beside this one, for as long as there is much of it.

They are handed texts and hand back plain values; what these mean, and what is wrong with a text, is found here, as if
they had been parsed here. Whatever they do not answer – they died, they hang, the text is not good – is parsed here. So
they can make a reading faster, and nothing else.
"""

from __future__ import annotations

import contextlib
import select
import socket
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import Self

import msgspec
import structlog

from kubeproxy.kubernetes.manifests.values import JsonValue, Value, is_json
from kubeproxy.sources.manifests.documents import Part, parse_here
from kubeproxy.sources.manifests.parser_process import HEAD, Answer, frame

log = structlog.get_logger(__name__)

MOST = 3
"""More than so many are not kept busy by the one who makes objects of what they have parsed."""
WORTHWHILE = 1 << 20
"""Bytes of YAML for which they are started: what is parsed here in the time in which three of them begin."""
BATCH = 1 << 16
"""Bytes in a question, about; some 25 ms of parsing."""
LONGEST = 1 << 20
"""Bytes of a text; a longer one is parsed here. So who does not answer hangs, and is not busy."""
DEPTH = 2
"""Questions that one has at a time, so that it never waits for the next."""
BEAT_S = 1.0
SILENT_BEATS = 15
"""Who has been asked, and has not answered after so many in which nobody did, hangs. Not seconds: while this very
process is stopped nobody is to blame."""
NICENESS = 10
ENDING_S = 0.5
"""How long one that says nothing more may take to end by itself."""
REAP_S = 5.0
"""How long one that was killed may take to end."""
_RECEIVE = 1 << 18

COMMAND = (sys.executable, "-P", "-m", "kubeproxy.sources.manifests.parser_process")
"""-P: nothing is imported from where the operator happens to be."""


class _Batch:
    """Texts that are asked about together."""

    __slots__ = ("answers", "begun", "digests", "helper", "settled", "size", "texts")

    def __init__(self) -> None:
        self.texts: list[bytes] = []
        self.digests: list[bytes] = []
        self.size = 0
        self.helper: _Helper | None = None
        self.settled = False
        """Nothing more will be heard of it."""
        self.begun = False
        """Some of it has been taken, or is wanted."""
        self.answers: dict[bytes, Answer] = {}

    def settle(self, answers: Sequence[Answer] = ()) -> None:
        self.answers = dict(zip(self.digests, answers, strict=bool(answers)))
        self.settled, self.helper = True, None
        self.texts, self.digests = [], []


class _Helper:
    """One of them: its process, the socket to it, and what it has been asked."""

    def __init__(self, command: Sequence[str]) -> None:
        """OSError when it cannot be started."""
        self.asked: deque[_Batch] = deque()
        self._unsent = memoryview(b"")
        self._received = bytearray()
        self.socket, theirs = socket.socketpair()
        try:
            with theirs:
                self.process = subprocess.Popen(command, stdin=theirs.fileno(), stdout=subprocess.DEVNULL)
        except BaseException:
            self.socket.close()
            raise
        self.socket.setblocking(False)

    @property
    def congested(self) -> bool:
        """It has yet to take what it is asked."""
        return bool(self._unsent)

    def ask(self, batch: _Batch) -> None:
        """OSError when it has gone."""
        batch.helper = self
        self.asked.append(batch)
        self._unsent = memoryview(bytes(self._unsent) + frame(batch.texts))
        self.send()

    def send(self) -> None:
        """As much as it takes now. OSError when it has gone."""
        with contextlib.suppress(BlockingIOError):
            while self._unsent:
                self._unsent = self._unsent[self.socket.send(self._unsent) :]

    def receive(self) -> None:
        """Take what it answers. OSError, EOFError or ValueError when it has gone, or lost its mind."""
        with contextlib.suppress(BlockingIOError):
            data = self.socket.recv(_RECEIVE)
            if not data:
                with contextlib.suppress(subprocess.TimeoutExpired):  # it will say how
                    self.process.wait(ENDING_S)
                raise EOFError("it has ended")
            self._received += data
        while len(self._received) >= HEAD:
            end = HEAD + int.from_bytes(self._received[:HEAD])
            if len(self._received) < end:
                return
            answers = msgspec.msgpack.decode(memoryview(self._received)[HEAD:end], type=list[Answer])
            del self._received[:end]
            if not self.asked or len(answers) != len(self.asked[0].texts):
                raise ValueError("it answers what nobody has asked")
            self.asked.popleft().settle(answers)

    def end(self) -> None:
        """At once. It holds nothing that could get lost."""
        for batch in self.asked:
            batch.settle()
        self.asked.clear()
        self.socket.close()
        self.process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(REAP_S)


class ParserPool:
    """Hand in the parts that will have to be parsed, then take them in the same order: a context manager, at whose end
    no process is left. None is started before there is enough to do. For one thread, which may be any."""

    def __init__(self, size: int, *, urgent: bool, command: Sequence[str] = COMMAND) -> None:
        """At most `size` processes; who moves bytes goes before them, unless this is `urgent`."""
        self._size = min(size, MOST)
        self._command = (*command, str(0 if urgent else NICENESS))
        self._helpers: list[_Helper] = []
        self._started = False
        self._open = _Batch()
        self._waiting: deque[_Batch] = deque()
        """Those that nobody has been asked about."""
        self._awaited: dict[bytes, _Batch] = {}
        """By a part's digest."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for helper in self._helpers:
            helper.end()
        self._helpers.clear()

    def submit(self, part: Part) -> None:
        """This will have to be parsed."""
        # JSON is parsed here in no time; and what is referred to may be small here, and large once it is written out.
        ejected = len(part.text) > LONGEST or is_json(part.text) or b"&" in part.text
        if ejected or part.digest in self._awaited:
            return
        self._open.texts.append(part.text)
        self._open.digests.append(part.digest)
        self._open.size += len(part.text)
        self._awaited[part.digest] = self._open
        if self._open.size >= BATCH:
            self._waiting.append(self._open)
            self._open = _Batch()
            self._ask()

    def parse(self, part: Part) -> list[Value]:
        """The values in a part, from whoever has parsed it; SyntaxFault like `parse_here`."""
        batch = self._awaited.pop(part.digest, None)
        if batch is None:
            return parse_here(part)
        if not batch.begun:
            batch.begun = True
            self._exchange(0)
        if not batch.settled:
            self._await(batch)
        values = batch.answers.pop(part.digest, None)
        return parse_here(part) if values is None else [JsonValue(value) for value in values]

    def _ask(self) -> None:
        """Keep everybody busy."""
        if not self._started:
            if sum(batch.size for batch in self._waiting) < WORTHWHILE:
                return
            self._started = True
            self._start()
        while self._waiting and (free := [helper for helper in self._helpers if len(helper.asked) < DEPTH]):
            helper = min(free, key=lambda each: len(each.asked))
            self._attempt(helper, partial(helper.ask, self._waiting.popleft()))

    def _start(self) -> None:
        try:
            for _ in range(self._size):
                self._helpers.append(_Helper(self._command))
        except OSError as error:
            log.warning(
                "manifests are parsed more slowly: a helper process cannot be started",
                reason=error.strerror or str(error),
                helpers=len(self._helpers),
            )

    def _await(self, batch: _Batch) -> None:
        """Until it is settled; at once where nobody has it in hand yet."""
        if batch is self._open:
            self._open = _Batch()
            batch.settle()
        elif batch.helper is None:
            self._waiting.remove(batch)
            batch.settle()
        silent = 0
        while not batch.settled:
            silent = 0 if self._exchange(BEAT_S) else silent + 1
            if silent >= SILENT_BEATS:
                for helper in [each for each in self._helpers if each.asked]:
                    self._lose(helper, f"it has not answered for {SILENT_BEATS * BEAT_S:g} s")

    def _exchange(self, patience_s: float) -> bool:
        """Send and receive what can be, and hand out what is waiting; whether anything could be."""
        poll = select.poll()
        by_descriptor = {helper.socket.fileno(): helper for helper in self._helpers}
        for descriptor, helper in by_descriptor.items():
            poll.register(descriptor, select.POLLIN | (select.POLLOUT if helper.congested else 0))
        ready = poll.poll(1e3 * patience_s) if by_descriptor else []
        for descriptor, events in ready:
            helper = by_descriptor[descriptor]
            if events & ~select.POLLOUT:
                self._attempt(helper, helper.receive)
            if events & select.POLLOUT and helper in self._helpers:
                self._attempt(helper, helper.send)
        self._ask()
        return bool(ready)

    def _attempt(self, helper: _Helper, act: Callable[[], None]) -> None:
        try:
            act()
        except (OSError, EOFError, ValueError, msgspec.MsgspecError) as error:
            self._lose(helper, str(error))

    def _lose(self, helper: _Helper, reason: str) -> None:
        """What it was asked is parsed here."""
        self._helpers.remove(helper)
        asked = len(helper.asked)
        helper.end()
        log.warning(
            "a helper process that parses manifests was lost; what it had is parsed here",
            reason=reason,
            pid=helper.process.pid,
            status=helper.process.returncode,
            batches=asked,
            helpers=len(self._helpers),
        )
