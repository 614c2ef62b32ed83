"""Fixtures for everybody."""

from __future__ import annotations

import pytest

from tests.lab.host import can_make_hosts


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests that need hosts of their own are skipped, and say so, where this user may not make them."""
    if all(item.get_closest_marker("netns") is None for item in items) or can_make_hosts():
        return
    skip = pytest.mark.skip(reason="needs root (or `unshare -Urn`) to make network namespaces")
    for item in items:
        if item.get_closest_marker("netns") is not None:
            item.add_marker(skip)
