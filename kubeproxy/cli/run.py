"""Implements ``kubeproxy run``, which is also installed as ``kube-proxy``."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from kubeproxy.cli.go_flags import FlagTexts, GoCommand
from kubeproxy.config.dump import dump
from kubeproxy.config.flags import flags
from kubeproxy.config.load import Loaded, load
from kubeproxy.config.schema import Configuration
from kubeproxy.config.validate import require_source
from kubeproxy.daemon import container_init
from kubeproxy.model.errors import ConfigError
from kubeproxy.model.version import __version__
from kubeproxy.runtime.output import echo


def _run(given: FlagTexts) -> int:
    if given.get("version", ["false"])[-1] in ("true", "raw"):
        echo(f"kubeproxy {__version__}")
        return 0
    loaded = load(given)
    actions = loaded.actions
    if path := actions.get("write-config-to"):
        return _write(Path(path), loaded)
    if actions.get("cleanup") == "true":
        from kubeproxy.cli.cleanup import clean_up

        return clean_up(loaded.configuration.logging)
    if actions.get("init-only") == "true":
        return _initialize(loaded)
    require_source(loaded.configuration, os.environ)
    return _serve(given, loaded)


def _write(path: Path, loaded: Loaded) -> int:
    try:
        path.write_text(dump(loaded.configuration), encoding="utf-8")
    except OSError as error:
        raise ConfigError(
            f"--write-config-to: found {path} ({error.strerror}); allowed: a file that can be written"
        ) from error
    for warning in loaded.warnings:
        echo(f"warning: {warning}", err=True)
    return 0


def _initialize(loaded: Loaded) -> int:
    """Make the kernel settings that need more privileges than the daemon has, and return the exit status. If the kernel
    refuses a setting, only log that, because a failed init container would prevent the daemon's start."""
    _import_structlog()
    from kubeproxy.daemon.settings import conntrack_limits
    from kubeproxy.netfilter.conntrack import sysctls
    from kubeproxy.observability.logs import setup

    configured = loaded.configuration.logging
    setup.configure(verbosity=configured.verbosity, fmt=configured.format)
    _log(loaded)
    sysctls.require_module()
    sysctls.enforce(conntrack_limits(loaded.configuration))
    return 0


def _serve(given: FlagTexts, loaded: Loaded) -> int:
    container_init.become()
    _import_structlog()
    from kubeproxy.daemon import check_files, control_process
    from kubeproxy.observability.logs import setup

    configured = loaded.configuration.logging
    setup.configure(verbosity=configured.verbosity, fmt=configured.format)
    _log(loaded)
    try:
        check_files.require(loaded.configuration, os.environ)
    except ConfigError as error:
        return control_process.refuse(error)

    def reload() -> Configuration:
        """Load the configuration again from the same command line and file. Raise ConfigError if it is invalid."""
        again = load(given)
        require_source(again.configuration, os.environ)
        check_files.require(again.configuration, os.environ)
        _log(again)
        return again.configuration

    return control_process.run(loaded.configuration, reload=reload, file=_absolute(loaded.actions.get("config", "")))


def _absolute(path: str) -> str:
    return os.path.abspath(path) if path else ""


def _import_structlog() -> None:
    """Import structlog without rich. If rich is installed, structlog imports it, for tracebacks that the daemon does
    not use.

    That would take a tenth of the CPU time of a start.
    """
    if "rich" in sys.modules:
        return
    sys.modules["rich"] = None  # type: ignore[assignment]  # what Python takes for "there is none"
    try:
        import structlog  # noqa: F401
    finally:
        del sys.modules["rich"]


def _log(loaded: Loaded) -> None:
    import structlog

    log = structlog.get_logger(__name__)
    for warning in loaded.warnings:
        log.warning("configuration: " + warning)


run = GoCommand(
    "run",
    flags(),
    _run,
    short="Run the proxy.",
    text=(
        "Services come from manifests, from an API server, or from both; at least one is required:\n\n\b\n"
        "  kubeproxy run --manifests /etc/kubeproxy/manifests\n"
        "  kubeproxy run --kubeconfig /var/lib/kube-proxy/kubeconfig.conf\n"
        "  kubeproxy run --config /etc/kubeproxy/config.yaml\n\n"
        "It accepts all flags of kube-proxy. With --config the file applies, and of the flags only those that override"
        " it. If another kubeproxy runs on this host, the new one takes over from it, unless it would"
        " serve less (see --takeover).\n\n"
        "SIGTERM (SIGINT, Ctrl-C) drains open connections for --shutdown-grace, then ends; a second one ends at once."
        " SIGHUP reads the configuration again. SIGUSR2 re-executes the program under the same process ID; its workers"
        " continue to serve."
    ),
)
