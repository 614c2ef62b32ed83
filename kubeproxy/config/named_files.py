"""The files that a configuration names, opened: a start does not fail halfway for want of one.

`kubeproxy check` and `kubeproxy run` do it before anything starts, and each reload does it again. The contents of
manifests are not read here: one that is faulty is no reason not to serve the others.
"""

from __future__ import annotations

import errno
import glob
import os
import shutil
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from kubeproxy.config.describe import describe
from kubeproxy.config.schema import Configuration
from kubeproxy.config.validate import uses_kubernetes
from kubeproxy.model.errors import ConfigError

SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
"""Where a pod finds its token and the API server's certificate."""
_KUBECONFIG: Final = "clientConnection.kubeconfig"
_MAX_KUBECONFIG: Final = 10_000_000
"""Bytes of a kubeconfig that are read; real ones have some thousand."""


def require(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """ConfigError with every file that is missing or cannot be used by this process."""
    if found := tuple(faults(configuration, environ, service_account=True)):
        raise ConfigError(*found)


def faults(configuration: Configuration, environ: Mapping[str, str], *, service_account: bool = False) -> Iterator[str]:
    """One line for each file that is missing or cannot be used by this process.

    `service_account`: also for the files of a pod, which no configuration names.
    """
    yield from _manifests(configuration.kubeproxy.manifests.paths)
    if uses_kubernetes(configuration, environ):
        if path := configuration.client_connection.kubeconfig:
            yield from _kubeconfig(path, overridden=bool(configuration.kubeproxy.master))
        elif service_account and not configuration.kubeproxy.master:
            for name in ("token", "ca.crt"):
                yield from _unreadable("kubeproxy.kubernetes", str(SERVICE_ACCOUNT / name), "a pod's service account")
    if (path := configuration.kubeproxy.access_log) not in ("", "-"):
        yield from _unwritable("kubeproxy.accessLog", path)


def _manifests(paths: Sequence[str]) -> Iterator[str]:
    for place, path in enumerate(paths):
        if path == "-" or "://" in path:  # a web server that does not answer now may answer later
            continue
        setting = f"kubeproxy.manifests.paths[{place}]"
        try:
            os.listdir(path) if stat.S_ISDIR(os.stat(path).st_mode) else _open(path)
        except FileNotFoundError as error:
            if not (glob.has_magic(path) and glob.glob(path)):
                yield _fault(setting, path, error, "a file, a directory, a pattern of files, a URL or -")
        except OSError as error:
            yield _fault(setting, path, error, "what this user can read")


def _open(path: str) -> None:
    """Open a file to read it. O_NONBLOCK: it may be a pipe without a writer."""
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


def _unreadable(setting: str, path: str, allowed: str = "a file that can be read") -> Iterator[str]:
    try:
        _open(path)
    except OSError as error:
        yield _fault(setting, path, error, allowed)


def _unwritable(setting: str, path: str) -> Iterator[str]:
    """A log that cannot be appended to. It is not made here: `check` changes nothing."""
    try:
        os.close(os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC | os.O_NONBLOCK))
    except FileNotFoundError as error:
        directory = os.path.dirname(path) or "."
        if not os.path.isdir(directory):
            yield _fault(setting, path, error, "a file in a directory that exists")
        elif not os.access(directory, os.W_OK | os.X_OK):
            yield _fault(setting, path, "its directory cannot be written", "a file that can be made")
    except BlockingIOError:
        pass
    except OSError as error:
        if error.errno != _NO_READER:
            yield _fault(setting, path, error, "a file that can be written")


_NO_READER: Final = errno.ENXIO
"""A pipe without a reader so far."""


def _kubeconfig(path: str, *, overridden: bool) -> Iterator[str]:
    """The kubeconfig, and the files that its current context names. `overridden`: a flag gives the server."""
    import yaml

    try:
        with open(path, "rb") as file:
            text = file.read(_MAX_KUBECONFIG)
        data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except OSError as error:
        yield _fault(_KUBECONFIG, path, error, "a file that can be read")
        return
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        yield _fault(_KUBECONFIG, path, f"no YAML: {' '.join(str(error).split())}", "a kubeconfig")
        return
    if not isinstance(data, Mapping):
        yield _fault(_KUBECONFIG, path, "no map", "a kubeconfig")
        return
    context = _named(data, "contexts", data.get("current-context"), "context")
    if context is None:
        found = f"current-context {describe(data.get('current-context'))} is none of its contexts"
        yield _fault(_KUBECONFIG, path, found, "a kubeconfig with a current-context that exists")
        return
    cluster = _named(data, "clusters", context.get("cluster"), "cluster")
    if (cluster is None or not cluster.get("server")) and not overridden:
        found = f"its cluster {describe(context.get('cluster'))} has no server"
        yield _fault(_KUBECONFIG, path, found, "a kubeconfig with a server for its current-context")
    user = _named(data, "users", context.get("user"), "user") or {}
    for entry, names in ((cluster or {}, _OF_CLUSTER), (user, _OF_USER)):
        for name in names:
            value = entry.get(name)
            if isinstance(value, str) and value and not entry.get(f"{name}-data"):
                yield from _unreadable(f"{_KUBECONFIG} {path}: {name}", _beside(path, value))
    plugin = user.get("exec")
    if isinstance(plugin, Mapping) and isinstance(command := plugin.get("command"), str):
        program = _beside(path, command) if "/" in command else command
        if shutil.which(program) is None:
            yield _fault(f"{_KUBECONFIG} {path}: exec.command", program, "no such program", "a program in PATH")


_OF_CLUSTER: Final = ("certificate-authority",)
_OF_USER: Final = ("client-certificate", "client-key", "tokenFile")


def _named(data: Mapping[str, Any], part: str, name: Any, content: str) -> Mapping[str, Any] | None:
    """The entry of a kubeconfig's list with that name."""
    entries = data.get(part)
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, Mapping) and entry.get("name") == name and isinstance(entry.get(content), Mapping):
            found: Mapping[str, Any] = entry[content]
            return found
    return None


def _beside(kubeconfig: str, path: str) -> str:
    """A path in a kubeconfig is relative to that file."""
    return os.path.join(os.path.dirname(os.path.abspath(kubeconfig)), path)


def _fault(setting: str, path: str, reason: OSError | str, allowed: str) -> str:
    why = (reason.strerror or str(reason)) if isinstance(reason, OSError) else reason
    return f"{setting}: found {path} ({why}); allowed: {allowed}"
