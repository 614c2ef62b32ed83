"""Decides the policy for data paths from the configuration and from what this host supports."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import structlog

from kubeproxy.config.schema import Configuration
from kubeproxy.model import Family
from kubeproxy.model.errors import KernelError
from kubeproxy.netfilter.direct_links import bridged_families
from kubeproxy.netfilter.interface import Feature, Netfilter
from kubeproxy.netfilter.ip_forwarding import forwarded_families
from kubeproxy.proxier.data_path_choice import USERSPACE_ONLY, DataPathPolicy, Wanted
from kubeproxy.proxier.slot_budget import SLOT_BYTES

log = structlog.get_logger(__name__)


class DataPaths:
    """Holds the policy in force."""

    def __init__(self, netfilter: Netfilter) -> None:
        self._netfilter = netfilter
        self._refusal: str | None = None
        """Why this host does not support the kernel path. It is empty if the host does, and None if the kernel has not
        been probed."""
        self._used = False
        """Whether there was an earlier configuration, so that this is a reload."""
        self.policy: DataPathPolicy = USERSPACE_ONLY
        self._on_change: Callable[[DataPathPolicy], None] | None = None

    def notify(self, on_change: Callable[[DataPathPolicy], None]) -> None:
        """Call `on_change` with each new policy."""
        self._on_change = on_change

    async def use(self, configuration: Configuration) -> None:
        """Apply this configuration from now on. The kernel is probed when a configuration wants the kernel path for the
        first time. Raise KernelError if the kernel path is not possible and workers must not serve instead."""
        wanted = Wanted(configuration.kubeproxy.data_path)
        if wanted is not Wanted.USERSPACE and self._refusal is None:
            reason = await self._netfilter.why_not(Feature.SPREADS)
            self._refusal = "" if reason is None else f"{self._netfilter.name}: {reason}"
            if self._refusal and configuration.kubeproxy.userspace_fallback == "never":
                raise KernelError(
                    f"kubeproxy.userspaceFallback is never, but the kernel path is not possible: {self._refusal}"
                )
            if self._refusal and wanted is Wanted.KERNEL:
                log.warning("kernel path not possible", reason=self._refusal, effect="userspace serves all Services")
        before = self.policy
        if wanted is not Wanted.USERSPACE and wanted is not before.wanted:
            self._say_what_it_needs(wanted)
        self._set(
            replace(
                before,
                wanted=wanted,
                refusal=self._refusal or "",
                # A start waits for the rescue elsewhere (`Rescue.ready`).
                rescue_starts=self._used
                and wanted is Wanted.KERNEL
                and not before.rescue
                and (before.wanted is not Wanted.KERNEL or before.rescue_starts),
                fallback=configuration.kubeproxy.userspace_fallback == "always",
                masquerade_all=configuration.masquerade_all,
                slots=(configuration.kubeproxy.slot_memory_mib << 20) // SLOT_BYTES,
            )
        )
        self._used = True

    def _say_what_it_needs(self, wanted: Wanted) -> None:
        log.info(
            "kernel path asked for",
            wanted=str(wanted),
            rules=self._refusal or f"{self._netfilter.name} takes them",
            forwarding=_words(forwarded_families()),
            # These settings hold for all bridges; a single bridge may override them.
            bridges_seen_by_netfilter=_words(bridged_families()),
        )

    def use_rescue(self, works: bool) -> None:
        """Record whether failed connections of the kernel path are rescued."""
        self._set(replace(self.policy, rescue=works, rescue_starts=self.policy.rescue_starts and not works))

    def cease_waiting(self) -> None:
        """Allow the kernel path without the rescue, which was not ready in time or is not wanted."""
        self._set(replace(self.policy, rescue_starts=False))

    def _set(self, policy: DataPathPolicy) -> None:
        if policy != self.policy:
            self.policy = policy
            if self._on_change is not None:
                self._on_change(policy)


def _words(families: frozenset[Family]) -> str:
    return ", ".join(map(str, sorted(families))) or "none"
