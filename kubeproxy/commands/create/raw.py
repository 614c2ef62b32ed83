"""Implements ``--raw``: posts one file unchanged."""

from __future__ import annotations

from kubeproxy.commands.create.options import CreateOptions
from kubeproxy.commands.create.report import Report
from kubeproxy.kubernetes.client.client import Client
from kubeproxy.kubernetes.manifests.files import MAX_BYTES
from kubeproxy.kubernetes.resource_builder.file_arguments import STDIN, FileSource, StdinSource
from kubeproxy.model.errors import ConfigError


async def post_raw(options: CreateOptions, client: Client, report: Report) -> int:
    """Post the file to the path of ``--raw``, print the answer, and return the exit status. Raise StatusError if the
    server refuses, and UnreachableError if it does not answer."""
    name = options.filenames[0]
    source = StdinSource() if name == STDIN else FileSource(name)
    body = bytearray()
    async for data in source.read():
        body += data
        if len(body) > MAX_BYTES:
            raise ConfigError(f"{source.name}: more than {MAX_BYTES} bytes")
    path, _, query = options.raw.partition("?")
    if not path.startswith("/"):
        raise ConfigError(f"--raw: found {options.raw!r}; allowed: a path that begins with a slash")
    from urllib.parse import parse_qsl

    answer = await client.request("POST", path, dict(parse_qsl(query)), body=bytes(body))
    report.data(answer.body.decode("utf-8", "replace"))
    return 0
