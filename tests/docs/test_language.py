"""Documents, docstrings, comments and log messages keep the rules of CONTRIBUTING.md."""

from __future__ import annotations

import pytest

from docs.generators.log_messages import computed
from tests.docs.language import WORDING, files, findings, listed, restates

COMPUTED = {"kubeproxy/observability/monitor/loop.py"}
"""Files that log a text which another component returns."""


@pytest.mark.parametrize("file", [file for file in files() if file not in listed()])
def test_the_language_of_a_file_is_plain(file: str) -> None:
    assert [str(it) for it in findings() if it.file == file] == []


def test_a_file_that_is_clean_is_not_on_the_list() -> None:
    unclean = {it.file for it in findings()}
    assert [file for file in listed() if file not in unclean] == [], "run: python -m tests.docs.language --update"


def test_log_messages_have_constant_texts() -> None:
    assert {"kubeproxy/" + place.partition(":")[0] for place in computed()} <= COMPUTED


@pytest.mark.parametrize(
    "text",
    ["whoever asks", "nobody\nlistens", "the owner is told", "it tells who serves", "it takes leave", "a pod made way"],
)
def test_wording_that_is_excluded_is_found(text: str) -> None:
    assert WORDING.search(text)


@pytest.mark.parametrize("text", ["the whole table", "the document says", "the kernel reports changes"])
def test_plain_wording_is_not_found(text: str) -> None:
    assert not WORDING.search(text)


def test_a_docstring_that_restates_the_name_is_found() -> None:
    assert restates("Seconds.", "seconds")
    assert restates("The worker's status.", "worker_status")
    assert not restates("Since start.", "seconds")
    assert not restates("Seconds since the process started.", "seconds")
