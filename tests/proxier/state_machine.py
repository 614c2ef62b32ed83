"""The common base of state machines around a Node."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from typing import Any

from hypothesis.stateful import RuleBasedStateMachine

from tests.proxier.fake_node import Node


class NodeMachine(RuleBasedStateMachine):
    """A Node, and a loop that it alone runs on.

    The loop is made by the first `wait`, not with the machine: a caller tears a machine down only if making it
    succeeded. And it is closed with the machine, even if the Node does not stand up to its last examination.
    """

    def __init__(self, node: Node) -> None:
        super().__init__()
        self.node = node
        self._runner = asyncio.Runner(loop_factory=asyncio.new_event_loop)

    def wait(self, coroutine: Coroutine[Any, Any, None]) -> None:
        """Run a coroutine to its end."""
        self._runner.run(coroutine)

    def start(self) -> None:
        """Let the proxier run."""

        async def starting() -> None:
            self.node.start()

        self.wait(starting())

    def teardown(self) -> None:
        """The last that happens to a machine, whatever went before."""
        with self._runner:
            self.wait(self.node.close())
