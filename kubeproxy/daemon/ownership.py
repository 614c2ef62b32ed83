"""Decides which instance owns the node. Its parts are the marker of this run, the takeover, and a new instance's first
transaction."""

from __future__ import annotations

import asyncio

from kubeproxy.config.schema import Configuration
from kubeproxy.daemon.data_plane_choice import AnyDataPlane
from kubeproxy.daemon.kernel_access import KernelAccess
from kubeproxy.daemon.process_start import Process
from kubeproxy.daemon.takeover.instances import InstanceMarker
from kubeproxy.daemon.takeover.owner import Owner
from kubeproxy.daemon.takeover.predecessor import Predecessor
from kubeproxy.daemon.takeover.rule_transfer import RuleTransfer
from kubeproxy.daemon.takeover.takeover import Takeover
from kubeproxy.model.version import __version__


class Ownership:
    """The role of this instance among the instances of the node: before, while and after the rules redirect to it."""

    def __init__(
        self,
        configuration: Configuration,
        process: Process,
        owner: Owner,
        marker: InstanceMarker,
        kernel: KernelAccess,
        data_plane: AnyDataPlane,
    ) -> None:
        """No method of `owner` is called before `takeover.begin`, which binds the control socket."""
        self.marker = marker
        self.takeover = Takeover(
            owner,
            version=__version__,
            others=marker.others,
            forced=configuration.kubeproxy.takeover == "force",
            stands_in=process.stands_in,
        )
        self.server = self.takeover.server
        self._adapter = kernel.netfilter.name
        self.rule_transfer = RuleTransfer(self.takeover, data_plane, adapter=self._adapter, on_taken=self._own)
        self.taken = self.rule_transfer.taken
        """Set when the rules redirect to this instance and the predecessor has released everything."""
        self._data_plane = data_plane
        # The marker is released last. An instance that waits for its end may rely on everything else being released.
        process.closing.push_async_callback(self.takeover.close)
        process.closing.callback(marker.close)

    @property
    def has_netfilter(self) -> bool:
        """Return whether a packet filter is in use. Without one several instances may run side by side."""
        return self._adapter != "none"

    @property
    def predecessor(self) -> Predecessor | None:
        """Return the owner of the node that this instance follows, or None if there is none."""
        return self.takeover.predecessor

    @property
    def superseded(self) -> asyncio.Event:
        """Return an event that is set when the rules redirect to another instance, and the HTTP ports and the control
        socket's name are released."""
        return self.server.superseded

    def has_predecessor(self) -> bool:
        """Return whether this instance takes over from an owner of the node."""
        return self.predecessor is not None

    def owns_rules(self) -> bool:
        """Return whether the rules redirect to this instance, and no other instance has taken them over."""
        return self.taken.is_set() and not self.superseded.is_set()

    def _own(self) -> None:
        """Become the owner of the node. The rules redirect to this instance, and the predecessor has released
        everything."""
        if self.has_netfilter:
            self.server.own()
        self.takeover.in_force()
        self._data_plane.share(False)
