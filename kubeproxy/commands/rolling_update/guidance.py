"""Makes the lines that tell the user how to continue or undo an update that has stopped."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from typing import Final

from kubeproxy.commands.rolling_update.options import UpdateOptions
from kubeproxy.commands.rolling_update.snapshot import Snapshot

_REPEATED: Final = (
    *("kubeconfig", "context", "cluster", "user", "server", "tls_server_name"),
    *("certificate_authority", "client_certificate", "client_key"),
)
"""The client flags that are repeated in the printed command lines. Flags with secrets are not among them."""


def go_on(options: UpdateOptions) -> str:
    """Return the command line that resumes this update."""
    if options.rollback:
        words = [*options.names, "--rollback"]
    elif options.filename:
        words = [*options.names, "-f", options.filename]
    else:
        words = [*options.names, f"--image={options.image}"]
        words += [f"--container={options.container}"] if options.container else []
        words += [f"--image-pull-policy={options.image_pull_policy}"] if options.image_pull_policy else []
    words += _key(options)
    words += [f"--cleanup-policy={options.cleanup}"] if options.cleanup is not None else []
    words += _pace(options)
    return _command(options, words)


def go_back(options: UpdateOptions, new_name: str) -> str:
    """Return the command line that undoes this update."""
    names = options.names if len(options.names) == 2 or not new_name else (options.names[0], new_name)
    return _command(options, [*names, "--rollback", *_key(options), *_pace(options)])


def _key(options: UpdateOptions) -> list[str]:
    """Return the flag of the deployment key, unless it is the default. The key must not change when an update is
    resumed or undone."""
    key = options.deployment_label_key
    return [] if key == "deployment" else [f"--deployment-label-key={key}"]


def _pace(options: UpdateOptions) -> list[str]:
    """Return the flags that change the speed of the update from its default, so that the resumed update has the same
    speed."""
    found = []
    if options.max_surge != 1:
        found.append(f"--max-surge={options.max_surge}")
    if options.max_unavailable != 0:
        found.append(f"--max-unavailable={options.max_unavailable}")
    if options.min_ready_s:
        found.append(f"--min-ready-seconds={options.min_ready_s:g}s")
    if not options.drain_timeout_s:
        found.append("--drain-timeout=0")
    return found


def _command(options: UpdateOptions, words: Sequence[str]) -> str:
    client = options.client
    flags = [f"--{name.replace('_', '-')}={value}" for name in _REPEATED if (value := getattr(client, name))]
    flags += ["--insecure-skip-tls-verify"] if client.insecure_skip_tls_verify else []
    namespace = ["-n", client.namespace] if client.namespace else []
    return shlex.join(["kubeproxy", "rolling-update", *words, *namespace, *flags])


def state(snapshot: Snapshot) -> str:
    """Return a text with the sizes and ready pods of both controllers."""
    sides = [side for side in (snapshot.down, snapshot.up) if side is not None]
    return "; ".join(
        f"{side.controller.name} has {side.ready} of {side.controller.replicas} pods ready" for side in sides
    )


def lines(options: UpdateOptions, snapshot: Snapshot | None, *, back: bool, new_name: str) -> list[str]:
    """Return the lines to print after the reason why the update has stopped. `back` tells whether the update can be
    undone."""
    found = [f"state: {state(snapshot)}; the pods keep serving"] if snapshot is not None else []
    found.append(f"to go on:   {go_on(options)}")
    if options.rollback:
        return found
    if back:
        found.append(f"to go back: {go_back(options, new_name)}")
    else:
        found.append("it cannot be undone any more: the old controller is deleted")
    return found
