"""Label selectors, as kubectl takes them."""

from __future__ import annotations

import pytest

from kubeproxy.kubernetes.resource_builder.selector_syntax import parse_selector
from kubeproxy.model.errors import ConfigError


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {}, True),
        ("a=b", {"a": "b"}, True),
        ("a==b,c!=d", {"a": "b", "c": "d"}, False),
        ("a!=b", {}, True),
        ("a", {"a": ""}, True),
        ("!a", {"a": ""}, False),
        ("! a , b", {"b": "1"}, True),
        ("a in (b, c)", {"a": "c"}, True),
        ("a in (b,)", {"a": ""}, True),
        ("a notin (b,c)", {"a": "c"}, False),
        ("a notin (b)", {}, True),
        ("a>3", {"a": "10"}, True),
        ("a<3", {"a": "x"}, False),
        ("app.kubernetes.io/name=x,tier in (web)", {"app.kubernetes.io/name": "x", "tier": "web"}, True),
        ("a=", {"a": ""}, True),
    ],
)
def test_a_selector_matches(text: str, labels: dict[str, str], expected: bool) -> None:
    assert parse_selector(text).matches(labels) is expected


@pytest.mark.parametrize(
    "text", ["a in", "a in b", "=b", "a,", "a b", "a in (b", "!", "a>b", "a=(", "-a", "a=b c", "a==="]
)
def test_what_is_no_selector_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"the provided selector .* is not valid"):
        parse_selector(text)
