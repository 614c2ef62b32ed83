"""JSON and YAML as Go writes them; the expected texts are kubectl's."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kubeproxy.kubernetes.printing.go_encoding import compact_json, indented_json, yaml_text
from kubeproxy.kubernetes.resource_builder.decode import parse

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**53), 2**53) | st.text(st.characters(codec="utf-8"), max_size=12),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


def test_what_looks_like_something_else_is_quoted_and_lines_stay_lines() -> None:
    value = {
        "a": "no", "b": "1e3", "c": "2020-01-01", "d": "12:30", "e": "x: y", "f": "a\n b\n", "g": "\na", "h": "",
        "i": [], "j": {}, "k": [1, {"x": None}], "l": True, "m": " lead", "n": "~", "o": "<<", "p": "a\x07",
    }  # fmt: skip
    assert yaml_text(value) == (
        'a: "no"\nb: "1e3"\nc: "2020-01-01"\nd: "12:30"\ne: \'x: y\'\nf: |\n  a\n   b\ng: |2-\n\n  a\nh: ""\ni: []\n'
        'j: {}\nk:\n- 1\n- x: null\nl: true\nm: \' lead\'\n"n": "~"\no: <<\np: "a\\a"\n'
    )


def test_line_breaks_at_the_end_of_a_text_do_not_end_the_document() -> None:
    assert yaml_text({"a": "\n", "b": "x..."}) == "a: |2+\n\nb: x...\n"
    assert yaml_text({"a": "x\n\n"}) == "a: |+\n  x\n\n"


def test_keys_are_in_the_order_of_go() -> None:
    keys = ["a10", "a2", "B", "b", "_a", "a-b", "a.b", "a", "aB", "A1", "10", "9", "x1y", "x1", "x01", "é"]
    order = [line.partition(":")[0].strip('"') for line in yaml_text(dict.fromkeys(keys, 1)).splitlines()]
    assert order == ["_a", "9", "10", "A1", "B", "a", "a-b", "a.b", "a2", "a10", "aB", "b", "x1", "x1y", "x01", "é"]


def test_json_is_escaped_for_html() -> None:
    assert compact_json({"b": "<&>\u2028", "a": 1}) == '{"a":1,"b":"\\u003c\\u0026\\u003e\\u2028"}'
    assert indented_json({"a": [1]}) == '{\n    "a": [\n        1\n    ]\n}'


@given(st.dictionaries(st.text(max_size=5), VALUES, max_size=4))
def test_what_is_printed_is_read_back(value: dict[str, object]) -> None:
    for text, is_json in ((indented_json(value), True), (yaml_text(value), False)):
        try:
            encoded = text.encode()
        except UnicodeEncodeError:
            continue
        (again,), _ = parse(encoded, 1, is_json=is_json)
        assert again == value
