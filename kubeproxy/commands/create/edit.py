"""Implements ``--edit``: the user changes the objects in an editor before they are created."""

from __future__ import annotations

import asyncio
import os
import shlex
import subprocess
import sys
import tempfile
from collections.abc import AsyncIterator
from typing import Final

from kubeproxy.commands.create.options import CreateOptions, NothingToDo
from kubeproxy.commands.create.report import Report
from kubeproxy.kubernetes.printing.go_encoding import indented_json, yaml_text
from kubeproxy.kubernetes.resource_builder.builder import Builder
from kubeproxy.kubernetes.resource_builder.errors import quoted
from kubeproxy.kubernetes.resource_builder.file_arguments import BytesSource
from kubeproxy.kubernetes.resource_builder.manifest_object import ResourceObject
from kubeproxy.model.errors import ConfigError

HEAD: Final = """\
# Please edit the object below. Lines beginning with a '#' will be ignored,
# and an empty file will abort the edit. If an error occurs while saving this file will be
# reopened with the relevant failures.
#
"""
_MOST_ATTEMPTS: Final = 20


async def edited(builder: Builder, options: CreateOptions, report: Report) -> AsyncIterator[ResourceObject | Exception]:
    """Open an editor with the objects, and yield the edited objects. If the edited text cannot be read, open it again
    with the errors at its top. Raise ConfigError if the text is empty, and `NothingToDo` if it is unchanged."""
    objects = await builder.objects()
    if not objects:
        return
    is_json = options.output.partition("=")[0] == "json"
    text = _text(objects, is_json=is_json)
    original = _content(text)
    head = "" if is_json else HEAD
    previous = ""
    for _ in range(_MOST_ATTEMPTS):
        said = await asyncio.to_thread(
            _edit, head + text, ".json" if is_json else ".yaml", options.windows_line_endings
        )
        content = _content(said)
        if not content.strip():
            raise ConfigError("Edit cancelled, saved file was empty.")
        if content in (original, previous):
            report.error("Edit cancelled, no changes made.")
            raise NothingToDo
        found = [each async for each in builder.stream([BytesSource("edited-file", content.encode())])]
        wrong = [each for each in found if not isinstance(each, ResourceObject)]
        if not wrong:
            for each in found:
                yield each
            return
        previous, text = content, content
        head = HEAD + "".join(f"# {line}\n" for error in wrong for line in str(error).splitlines()) + "#\n"
        for error in wrong:
            report.error(f"error: {error}")
    raise ConfigError("Edit cancelled, the file could not be read.")


def _text(objects: list[ResourceObject], *, is_json: bool) -> str:
    if not is_json:
        return "---\n".join(yaml_text(each.data) for each in objects)
    if len(objects) == 1:
        return indented_json(objects[0].data) + "\n"
    return indented_json({"apiVersion": "v1", "kind": "List", "items": [each.data for each in objects]}) + "\n"


def _content(text: str) -> str:
    """Return a text without comments and with plain line ends."""
    lines = text.replace("\r\n", "\n").splitlines(keepends=True)
    return "".join(line for line in lines if not line.startswith("#"))


def _edit(text: str, suffix: str, windows_line_endings: bool) -> str:
    """Open a text in the user's editor, and return the edited text. Raise ConfigError if the editor fails."""
    editor = os.environ.get("KUBE_EDITOR") or os.environ.get("EDITOR") or "vi"
    descriptor, path = tempfile.mkstemp(prefix="kubeproxy-edit-", suffix=suffix)
    try:
        with open(descriptor, "w", encoding="utf-8", newline="\r\n" if windows_line_endings else "\n") as file:
            file.write(text)
        try:
            done = subprocess.run(  # Use a shell, because $EDITOR may have arguments.
                ["/bin/sh", "-c", f"{editor} {shlex.quote(path)}"], check=False, stdin=sys.stdin
            )
        except OSError as error:
            raise ConfigError(f"there was a problem with the editor {quoted(editor)}: {error}") from None
        if done.returncode:
            raise ConfigError(f"there was a problem with the editor {quoted(editor)}: exit status {done.returncode}")
        with open(path, encoding="utf-8", errors="replace", newline="") as file:
            return file.read()
    finally:
        os.unlink(path)
