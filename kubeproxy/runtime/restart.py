"""Parts of the daemon that go on whatever happens to them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from kubeproxy.model.errors import KubeproxyError

log = structlog.get_logger(__name__)

RESTART_S = 1.0
"""How long a part that ended by a fault of ours stays down before it is started again."""


async def kept_running(name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """A part that fails by a fault of ours is started again; what is served goes on meanwhile."""
    while True:
        try:
            await part()
            return
        except KubeproxyError as error:
            log.error("cannot go on; tries again", part=name, reason=str(error), retry_in_s=RESTART_S)
        except Exception as error:
            if _is_want_of_memory(error):
                log.error(
                    "short of memory or threads; starts again", part=name, reason=repr(error), retry_in_s=RESTART_S
                )
            else:
                log.exception("internal error; starts again", part=name, retry_in_s=RESTART_S)
        await asyncio.sleep(RESTART_S)


def _is_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_want_of_memory, error.exceptions))
    # The second is what Python says when there is no memory for a thread, or there are too many.
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))
