"""Every regular expression of the project takes time in proportion to the text, however hostile that is.

The expressions are collected from the source, so that a new one is tried without being named here. Each is tried with
the methods by which the source uses it, on texts of 50 kB that are made from the expression itself: characters of its
alphabet and beginnings of its matches, repeated, with and without an end that fails.
"""

from __future__ import annotations

import ast
import importlib
import re
import signal
from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from re import _constants, _parser  # type: ignore[attr-defined]  # the standard library's parser of expressions
from typing import Any, Final

import pytest

import kubeproxy

SOURCE: Final = Path(kubeproxy.__file__).parent
LENGTH: Final = 50_000
CPU_S: Final = 0.5
"""Processor time for one text. One pass takes some milliseconds, and a pass for each character two seconds."""
METHODS: Final = frozenset({"search", "match", "fullmatch", "sub", "findall", "finditer", "split"})
FUNCTIONS: Final = METHODS | {"compile"}
CONCERNED: Final = re.compile(rf"\.({'|'.join(FUNCTIONS)})\b")
"""In the text of every file that makes or uses an expression."""


# Collecting


def _constant(call: ast.Call) -> str | bytes | None:
    given = call.args[0] if call.args else None
    return given.value if isinstance(given, ast.Constant) and isinstance(given.value, str | bytes) else None


def _function_of_re(node: ast.AST) -> str:
    """The function of the module re that is called here; empty: none is."""
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id="re"), attr=function)) if function in FUNCTIONS:
            return function
        case _:
            return ""


def _used(trees: Mapping[Path, ast.Module]) -> Mapping[str, set[str]]:
    """The methods that are called on each name, and on what is compiled in place: then the name is the expression."""
    found: defaultdict[str, set[str]] = defaultdict(set)
    for tree in trees.values():
        for node in ast.walk(tree):
            match node:
                case ast.Attribute(value=ast.Name(id=name) | ast.Attribute(attr=name), attr=method) if (
                    method in METHODS
                ):
                    found[name].add(method)
                case ast.Attribute(value=ast.Call() as call, attr=method) if method in METHODS and _function_of_re(
                    call
                ):
                    found[str(_constant(call))].add(method)
    return found


def _patterns(value: object, depth: int = 0) -> Iterator[re.Pattern[Any]]:
    """The compiled expressions in a value of a module."""
    match value:
        case re.Pattern():
            yield value
        case dict() if depth < 3:
            for each in [*value.keys(), *value.values()]:
                yield from _patterns(each, depth + 1)
        case list() | tuple() if depth < 3:
            for each in value:
                yield from _patterns(each, depth + 1)
        case type() if value.__module__.startswith("kubeproxy.") and depth < 1:
            for each in vars(value).values():
                yield from _patterns(each, depth + 1)


@cache
def expressions() -> Mapping[tuple[str, str], tuple[re.Pattern[Any], set[str]]]:
    """Return all expressions, by file and text, with the methods that the source calls. It takes a second."""
    sources = {path: path.read_text() for path in sorted(SOURCE.rglob("*.py"))}
    trees = {path: ast.parse(text) for path, text in sources.items() if CONCERNED.search(text)}
    used = _used(trees)
    found: dict[tuple[str, str], tuple[re.Pattern[Any], set[str]]] = {}
    for path, tree in trees.items():
        where = str(path.relative_to(SOURCE))
        calls = [(function, node) for node in ast.walk(tree) if (function := _function_of_re(node))]
        if not calls:
            continue
        module = importlib.import_module(".".join(["kubeproxy", *path.relative_to(SOURCE).with_suffix("").parts]))
        for name, value in vars(module).items():
            for pattern in _patterns(value):
                methods = used.get(name) or used.get(str(pattern.pattern)) or {"search", "fullmatch"}
                found[where, str(pattern.pattern)] = pattern, set(methods)
        for function, call in calls:
            assert isinstance(call, ast.Call)
            text = _constant(call)
            if text is not None and (where, str(text)) not in found:
                methods = {function} if function != "compile" else set(used.get(str(text)) or {"search", "fullmatch"})
                found[where, str(text)] = re.compile(text), methods
    return found


FILES: Final = sorted(
    str(path.relative_to(SOURCE)) for path in SOURCE.rglob("*.py") if re.search(r"\bre\.\w+\(", path.read_text())
)


def test_they_are_found() -> None:
    files = {where for where, _ in expressions()}
    assert files <= set(FILES)
    assert {"observability/redaction.py", "kubernetes/manifests/parse.py", "sources/translate/validation.py"} <= files
    assert expressions()["sources/translate/validation.py", r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"][1] == {"fullmatch"}
    assert len(expressions()) > 70
    dynamic = [where for where, text in expressions() if "%s" in text or "{_" in text]
    assert dynamic == []


# Hostile texts


def _member(items: list[tuple[Any, Any]]) -> str:
    """A character of a class."""
    if items[0][0] is _constants.NEGATE:
        taken = {chr(value) for kind, value in items if kind is _constants.LITERAL}
        return next(each for each in "a1 -~_xX" if each not in taken)
    kind, value = items[-1]
    if kind is _constants.RANGE:
        return chr(value[0])
    if kind is _constants.CATEGORY:
        return {"DIGIT": "1", "SPACE": " ", "WORD": "a"}.get(str(value).removeprefix("CATEGORY_"), "-")
    return chr(value)


class Texts:
    """Beginnings of matches, and what an expression repeats behind them."""

    def __init__(self, pattern: re.Pattern[Any]) -> None:
        self.alphabet: set[str] = set()
        self.repeats: set[tuple[str, str]] = set()
        """A beginning, and what may follow it any number of times."""
        self.sample = self._walk(
            _parser.parse(
                pattern.pattern, pattern.flags & ~re.UNICODE if isinstance(pattern.pattern, bytes) else pattern.flags
            ),
            "",
        )

    def _walk(self, tree: Any, before: str) -> str:
        for kind, value in tree:
            before = self._step(kind, value, before)
        return before

    def _step(self, kind: Any, value: Any, before: str) -> str:
        if kind is _constants.LITERAL:
            return self._one(chr(value), before)
        if kind is _constants.NOT_LITERAL:
            return self._one("a" if value != ord("a") else "b", before)
        if kind is _constants.ANY:
            return self._one("a", before)
        if kind is _constants.IN:
            for item in value:
                if item[0] is not _constants.NEGATE:
                    self.alphabet.add(_member([item]))
            return self._one(_member(value), before)
        if kind is _constants.BRANCH:
            return [self._walk(branch, before) for branch in reversed(value[1])][-1]
        if kind is _constants.SUBPATTERN:
            return self._walk(value[-1], before)
        if kind in (_constants.MAX_REPEAT, _constants.MIN_REPEAT, _constants.POSSESSIVE_REPEAT):
            least, most, body = value
            once = self._walk(body, before).removeprefix(before)
            if most > 50:
                self.repeats.add((before, once))
            return before + once * int(max(1, min(least, 50)))
        return before  # assertions and positions take no character

    def _one(self, character: str, before: str) -> str:
        self.alphabet.add(character)
        return before + character

    def __iter__(self) -> Iterator[str]:
        units = {*self.alphabet, self.sample}
        for before, body in self.repeats:
            units |= {before, body, before + body, body + before}
        for left in sorted(self.alphabet)[:4]:
            units |= {left + right for right in sorted(self.alphabet)[:4]}
        for unit in sorted(filter(None, units)):
            yield from self._repeated("", unit)
        for before, body in sorted(self.repeats):
            if before and body:
                yield from self._repeated(before, body)

    @staticmethod
    def _repeated(before: str, unit: str) -> Iterator[str]:
        text = before + unit * ((LENGTH - len(before)) // len(unit))
        yield text
        yield text + "\x01"  # no match ends so


@contextmanager
def _cpu_limit(seconds: float) -> Iterator[None]:
    """TimeoutError when the block has used so much processor time; the load of the machine does not count."""

    def end(signum: int, frame: object) -> None:
        raise TimeoutError

    before = signal.signal(signal.SIGVTALRM, end)
    signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


def _try(pattern: re.Pattern[Any], method: str, text: str) -> None:
    subject = text.encode("latin-1", "replace") if isinstance(pattern.pattern, bytes) else text
    match method:
        case "sub":
            pattern.sub(b"" if isinstance(subject, bytes) else "", subject)
        case "finditer":
            for _ in pattern.finditer(subject):
                pass
        case _:
            getattr(pattern, method)(subject)


def slow(pattern: re.Pattern[Any], method: str) -> list[str]:
    """The beginnings of texts for which it takes too long."""
    found = []
    for text in Texts(pattern):
        try:
            with _cpu_limit(CPU_S):
                _try(pattern, method, text)
        except TimeoutError:
            found.append(text[:40] + ("…\x01" if text[-1] == "\x01" else "…"))
            break
    return found


@pytest.mark.parametrize("where", FILES)
def test_no_text_takes_more_than_its_length(where: str) -> None:
    faults = [
        (pattern.pattern, method, texts)
        for (file, _), (pattern, methods) in expressions().items()
        if file == where
        for method in sorted(methods)
        if (texts := slow(pattern, method))
    ]
    assert faults == []


@pytest.mark.parametrize(
    ("text", "method"),
    [(r"\{\{.*\}\}", "search"), (r"(a+)+b", "fullmatch"), (r"x*y", "search"), (r"(?:\w+\s*)+;", "match")],
)
def test_slow_ones_are_recognized(text: str, method: str) -> None:
    assert slow(re.compile(text), method)
