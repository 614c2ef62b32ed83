"""The compiled form of the byte path means what the sources mean, and its failures name them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from kubeproxy.dataplane.loop import reactor
from tests.support.compiled_modules import ARE_THERE, environment

pytestmark = pytest.mark.skipif(not ARE_THERE, reason="nothing is compiled here, or of other sources: make compiled")

SCRIPTS = 40


def start(*arguments: str, compiled: bool) -> subprocess.Popen[str]:
    """Start Python with one form of the byte path; its two outputs are pipes."""
    return subprocess.Popen(
        [sys.executable, *arguments],
        env={**os.environ, **environment(compiled=compiled)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def test_both_forms_do_the_same_for_the_same_clients_and_endpoints() -> None:
    program = ("-m", "tests.dataplane.scripted_sockets", "0", str(SCRIPTS))
    both = [start(*program, compiled=compiled) for compiled in (False, True)]
    (pure, pure_errors), (compiled, compiled_errors) = [process.communicate(timeout=110) for process in both]
    assert pure_errors == compiled_errors == ""
    (pure_form, *expected), (compiled_form, *found) = pure.splitlines(), compiled.splitlines()
    assert (pure_form, compiled_form) == ("pure", "compiled")
    assert len(expected) == SCRIPTS
    for ours, theirs in zip(found, expected, strict=True):
        assert ours == theirs


def test_a_traceback_of_compiled_code_names_the_line() -> None:
    fails = "from kubeproxy.dataplane.loop.reactor import Reactor; Reactor().add(12345, print)"
    _, errors = start("-c", fails, compiled=True).communicate(timeout=60)
    found = re.search(r'File "kubeproxy/dataplane/loop/reactor\.py", line (\d+), in add\n', errors)
    assert found is not None, errors
    assert "self._epoll.register" in Path(reactor.__file__).read_text().splitlines()[int(found[1]) - 1]
    assert "OSError: [Errno 9] Bad file descriptor" in errors
