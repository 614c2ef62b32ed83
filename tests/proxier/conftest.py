"""Nodes among fakes, for the tests of the proxier."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack

import pytest_asyncio

from tests.proxier.fake_node import MakeNode, Node


@pytest_asyncio.fixture
async def make_node() -> AsyncIterator[MakeNode]:
    """Nodes, which must release everything in the end."""
    async with AsyncExitStack() as nodes:

        def make(**settings: object) -> Node:
            node = Node(**settings)  # type: ignore[arg-type]
            nodes.push_async_callback(node.close)
            return node

        yield make
