"""The reference in docs/ is what the code says."""

from __future__ import annotations

from pathlib import Path

from docs.generators.configuration import render
from kubeproxy.config.flags import flags

DOCUMENT = Path(__file__).parents[2] / "docs" / "configuration.md"


def test_the_document_is_current() -> None:
    regenerate = "python -m docs.generators.configuration > docs/configuration.md"
    assert DOCUMENT.read_text(encoding="utf-8") == render(), f"run: {regenerate}"


def test_every_flag_is_in_it() -> None:
    text = render()
    assert [flag.dashed for flag in flags().values() if f"`{flag.dashed}`" not in text] == []
