"""Documents, docstrings, comments and log messages keep the rules of CONTRIBUTING.md."""

from __future__ import annotations

import pytest

from docs.generators.log_messages import computed
from tests.docs.language import PERSONS, WORDING, files, findings, restates

COMPUTED = {"kubeproxy/observability/monitor/loop.py"}
"""Files that log a text which another component returns."""


@pytest.mark.parametrize("file", files())
def test_the_language_of_a_file_is_plain(file: str) -> None:
    assert [str(it) for it in findings() if it.file == file] == []


def test_log_messages_have_constant_texts() -> None:
    assert {"kubeproxy/" + place.partition(":")[0] for place in computed()} <= COMPUTED


@pytest.mark.parametrize(
    "text",
    [
        *(
            form
            for word in PERSONS
            for form in (f"the {word}", f"{word.title()}\nlistens", f"self._{word}_left", f"b'{word}'")
        ),
        "it takes leave",
        "a pod made way",
        "servers.give_away()",
        "it was not heard",
    ],
)
def test_wording_that_is_excluded_is_found(text: str) -> None:
    assert WORDING.search(text)


@pytest.mark.parametrize(
    "text",
    ["the whole table", "it will fill", "the document says", *(f"a-program --an-{word}=1" for word in PERSONS)],
)
def test_plain_wording_is_not_found(text: str) -> None:
    assert not WORDING.search(text)


def test_a_docstring_that_restates_the_name_is_found() -> None:
    assert restates("Seconds.", "seconds")
    assert restates("The worker's status.", "worker_status")
    assert not restates("Since start.", "seconds")
    assert not restates("Seconds since the process started.", "seconds")
