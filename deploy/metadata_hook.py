"""The project's URLs in a distribution's metadata, from one variable of the environment."""

from __future__ import annotations

import os
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

_PAGES = {
    "Documentation": "docs/install.md",
    "Changelog": "CHANGELOG.md",
    "Security": "SECURITY.md",
}


class ProjectUrls(MetadataHookInterface):
    """Adds ``PROJECT_URL`` as home page, and the pages below it.

    ``PROJECT_URL`` is the address at which the files of this repository can be read, as
    ``https://git.example.com/kubeproxy/blob/main``. Without it a distribution has no URLs.
    """

    def update(self, metadata: dict[str, Any]) -> None:
        """Add the URLs to the metadata."""
        url = os.environ.get("PROJECT_URL", "").rstrip("/")
        if url and not url.startswith("https://"):
            raise ValueError(f"PROJECT_URL: found {url!r}; allowed: a URL that begins with https://")
        metadata["urls"] = {"Homepage": url, **{name: f"{url}/{page}" for name, page in _PAGES.items()}} if url else {}
