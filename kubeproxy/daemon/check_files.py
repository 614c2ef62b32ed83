"""Opens the files that a configuration names, so that a start does not fail halfway because one is missing.

`kubeproxy check` and `kubeproxy run` do this before anything starts, and so does each reload. Manifests are not parsed
here, because a faulty one is no reason not to serve the others.
"""

from __future__ import annotations

import errno
import glob
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from kubeproxy.config.schema import Configuration
from kubeproxy.config.validate import uses_kubernetes
from kubeproxy.model.errors import ConfigError


def require(configuration: Configuration, environ: Mapping[str, str]) -> None:
    """Raise ConfigError with every file that is missing or that this process cannot use."""
    if found := tuple(faults(configuration, environ, service_account=True)):
        raise ConfigError(*found)


def faults(configuration: Configuration, environ: Mapping[str, str], *, service_account: bool = False) -> Iterator[str]:
    """Yield one line for each file that is missing or that this process cannot use.

    If `service_account` is true, also check the service account files of a pod, which no configuration names.
    """
    yield from _manifests(configuration.kubeproxy.manifests.paths)
    if uses_kubernetes(configuration, environ):
        yield from _credentials(configuration, service_account=service_account)
    if (path := configuration.kubeproxy.access_log) not in ("", "-"):
        yield from _unwritable("kubeproxy.accessLog", path)


def _manifests(paths: Sequence[str]) -> Iterator[str]:
    for place, path in enumerate(paths):
        if path == "-" or "://" in path:  # Standard input or a URL. A web server that is down now may answer later.
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
    """Open a file for reading. O_NONBLOCK is needed because the file may be a pipe without a writer."""
    os.close(os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))


def _credentials(configuration: Configuration, *, service_account: bool) -> Iterator[str]:
    """Yield what is wrong with the kubeconfig and the files that its current context names, or with the service account
    files of a pod."""
    from kubeproxy.kubernetes.client.credentials import ClientSettings
    from kubeproxy.kubernetes.client.kubeconfig import SERVICE_ACCOUNT

    kubeconfig, master = configuration.client_connection.kubeconfig, configuration.kubeproxy.master
    if kubeconfig:
        try:
            ClientSettings(kubeconfig=kubeconfig, master=master).read()
        except ConfigError as error:
            yield from (f"clientConnection.kubeconfig: {fault}" for fault in error.faults)
    elif service_account and not master:
        for name in ("token", "ca.crt"):
            path = str(SERVICE_ACCOUNT / name)
            try:
                _open(path)
            except OSError as error:
                yield _fault("kubeproxy.kubernetes", path, error, "a pod's service account")


def _unwritable(setting: str, path: str) -> Iterator[str]:
    """Yield what is wrong with a log file that cannot be appended to. The file is not created, because `check` changes
    nothing."""
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
"""The error of a pipe that has no reader yet."""


def _fault(setting: str, path: str, reason: OSError | str, allowed: str) -> str:
    why = (reason.strerror or str(reason)) if isinstance(reason, OSError) else reason
    return f"{setting}: found {path} ({why}); allowed: {allowed}"
