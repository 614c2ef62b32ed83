"""This process's standing with the kernel: how many descriptors it may have, who goes first when memory runs out."""

from __future__ import annotations

import gc
import resource
from pathlib import Path

import structlog

log = structlog.get_logger(__name__)


def raise_descriptor_limit() -> int:
    """As many descriptors as the hard limit allows; the limit now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def set_oom_score_adj(adjustment: int) -> None:
    """Our place in the kernel's choice when memory runs out. As with kube-proxy, a refusal (lowering it takes
    CAP_SYS_RESOURCE) is told and nothing more."""
    try:
        Path("/proc/self/oom_score_adj").write_text(str(adjustment), encoding="ascii")
    except OSError as error:
        log.info(
            "cannot set oomScoreAdj; goes on without",
            wanted=adjustment,
            reason=error.strerror,
            remedy="CAP_SYS_RESOURCE, systemd's OOMScoreAdjust=, or --oom-score-adj=0",
        )


def settle_memory() -> None:
    """What is there now stays: spare the collector from going through it again.

    The byte path leaves no cycles behind, so the collector need hardly ever look at everything; but let it come often
    for what is new. That costs no more in sum, and while ten thousand Services come, no pause is longer than a
    millisecond; at the 50,000 objects that were waited for before, it was eight."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 4, 10_000)
