"""Files in memory (memfd) for clients' keys, so that no key stays on a disk if this process is killed."""

from __future__ import annotations

import os
from typing import Final

MAX_FILES: Final = 16
"""The number of files that are kept open. A configuration uses three: certificate authority, certificate and key."""
_kept: dict[bytes, int] = {}
"""The file descriptors by content, in the order of their last use."""


def path_of(data: bytes) -> str:
    """Return a path at which this process can read the data. The path is valid until `MAX_FILES` other files have been
    requested."""
    descriptor = _kept.pop(data, None)
    if descriptor is None:
        descriptor = os.memfd_create("kubeconfig", os.MFD_CLOEXEC)
        with open(descriptor, "wb", closefd=False) as file:
            file.write(data)
    _kept[data] = descriptor
    while len(_kept) > MAX_FILES:
        os.close(_kept.pop(next(iter(_kept))))
    return f"/proc/self/fd/{descriptor}"
