"""Restarts a part of the daemon after an internal error."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any

import structlog

from kubeproxy.model.errors import KubeproxyError

log = structlog.get_logger(__name__)

RESTART_S = 1.0
"""The pause in seconds before a failed part is restarted."""


async def kept_running(name: str, part: Callable[[], Coroutine[Any, Any, None]]) -> None:
    """Run `part` until it returns. If it raises, log the error and run it again after `RESTART_S`. Meanwhile the rest
    of the daemon goes on."""
    while True:
        try:
            await part()
            return
        except KubeproxyError as error:
            log.error("part failed", part=name, reason=str(error), retry_in_s=RESTART_S)
        except Exception as error:
            if _is_want_of_memory(error):
                log.error("part lacks memory or threads", part=name, reason=repr(error), retry_in_s=RESTART_S)
            else:
                log.exception("part failed by internal error", part=name, retry_in_s=RESTART_S)
        await asyncio.sleep(RESTART_S)


def _is_want_of_memory(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return all(map(_is_want_of_memory, error.exceptions))
    # Python raises RuntimeError if there is no memory for a thread, or the limit on threads is reached.
    return isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "start new thread" in str(error))
