"""``kubeproxy run``: its actions, and the configuration of the daemon."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeproxy.cli import main
from kubeproxy.config.schema import Configuration
from kubeproxy.daemon import control_process
from kubeproxy.model.errors import ConfigError, KernelError, KubeproxyError
from kubeproxy.netfilter import cleanup, ipvs
from tests.config.files import HEAD, write

Reload = Callable[[], Configuration]


class FakeDaemon:
    """Replaces the daemon; `while_serving` runs in place of serving."""

    def __init__(self) -> None:
        self.served: list[Configuration] = []
        self.while_serving: Callable[[Reload], object] = lambda reload: None

    def run(self, configuration: Configuration, *, reload: Reload, file: str) -> int:
        self.served.append(configuration)
        self.while_serving(reload)
        return 7


@pytest.fixture
def served(monkeypatch: pytest.MonkeyPatch) -> FakeDaemon:
    fake = FakeDaemon()
    monkeypatch.setattr(control_process, "run", fake.run)
    return fake


@pytest.fixture(autouse=True)
def _own_logging() -> Iterator[None]:
    """Commands set up the log of the process, which other tests share."""
    root = logging.getLogger()
    handlers, level = root.handlers[:], root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(False)


def test_the_daemon_gets_the_configuration_and_gives_the_exit_status(served: FakeDaemon) -> None:
    assert main.status_of(["run", "--manifests", "/", "--manifests=/tmp", "--shutdown-grace=3s"]) == 7
    (configuration,) = served.served
    assert configuration.kubeproxy.manifests.paths == ("/", "/tmp")
    assert configuration.kubeproxy.shutdown_grace.seconds == 3


def test_warnings_go_to_the_log(served: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = write(tmp_path, "oomScoreAdjust: 1\nipvs: {strictARP: true}")
    assert main.status_of(["run", "--config", config, "--manifests=/tmp", "--proxy-mode=ipvs"]) == 7
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 3
    assert "ignored because of --config: --proxy-mode" in lines[0]
    assert "oomScoreAdjust: unknown field, ignored; did you mean oomScoreAdj?" in lines[1]
    assert "accepted, but without effect: ipvs.strictARP" in lines[2]


def test_reload_reads_the_file_and_flags_still_override_it(served: FakeDaemon, tmp_path: Path) -> None:
    config = write(tmp_path, "logging: {verbosity: 1}")
    seen = []

    def rewrite(reload: Reload) -> None:
        write(tmp_path, "logging: {verbosity: 3}\nkubeproxy: {netfilter: iptables}")
        seen.append(reload())
        write(tmp_path, "logging: {verbosity: many}")
        with pytest.raises(ConfigError, match=r"logging\.verbosity"):
            reload()

    served.while_serving = rewrite
    main.status_of(["run", "--config", config, "--manifests=/tmp", "--netfilter=none"])
    assert [(new.logging.verbosity, new.kubeproxy.netfilter) for new in seen] == [(3, "none")]


def test_faults_start_nothing(served: FakeDaemon, tmp_path: Path) -> None:
    assert main.status_of(["run", "--manifests=/tmp", "--udp-timeout=0"]) == 64
    assert main.status_of(["run", "--manifests=/tmp", "--config", write(tmp_path, "mode: x")]) == 64
    assert served.served == []


def test_write_config_to_writes_the_configuration_and_does_not_serve(
    served: FakeDaemon, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "written.yaml"
    assert main.status_of(["run", "--netfilter=iptables", "--udp-timeout=9s", "--write-config-to", str(path)]) == 0
    assert capsys.readouterr().out == ""
    text = path.read_text(encoding="utf-8")
    assert text.startswith(HEAD)
    assert "udpIdleTimeout: 9s\n" in text
    assert main.status_of(["run", "--config", str(path), "--manifests=/tmp"]) == 7
    assert served.served[0].kubeproxy.netfilter == "iptables"


def test_write_config_to_writes_nothing_faulty(tmp_path: Path) -> None:
    path = tmp_path / "written.yaml"
    assert main.status_of(["run", "--proxy-mode=x", "--write-config-to", str(path)]) == 64
    assert not path.exists()


@pytest.mark.parametrize(
    ("removed", "output"), [([], "nothing to remove\n"), (["table a", "chain b"], "table a\nchain b\n")]
)
@pytest.mark.parametrize("args", [["cleanup"], ["run", "--cleanup"]])
def test_cleanup_prints_the_removed_rules(
    args: list[str],
    removed: list[str],
    output: str,
    served: FakeDaemon,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def clean(*, dry_run: bool, force: bool) -> list[str]:
        assert not dry_run
        assert not force
        return removed

    monkeypatch.setattr(cleanup, "cleanup_all", clean)
    assert main.status_of(args) == 0
    assert capsys.readouterr().out == output
    assert served.served == []


def test_what_is_left_of_ipvs_goes_alone(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ipvs, "remove", lambda *, dry_run, force: ["interface a"] if dry_run or force else [])
    assert main.status_of(["cleanup", "--ipvs", "--dry-run"]) == 0
    assert main.status_of(["cleanup", "--ipvs"]) == 0
    assert main.status_of(["cleanup", "--ipvs", "--force"]) == 0
    assert capsys.readouterr().out == "would remove interface a\nnothing to remove\ninterface a\n"


def test_a_failed_cleanup_ends_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    async def clean(*, dry_run: bool, force: bool) -> list[str]:
        raise KernelError("not permitted")

    def remove(*, dry_run: bool, force: bool) -> list[str]:
        raise KubeproxyError("kube-proxy runs")

    monkeypatch.setattr(cleanup, "cleanup_all", clean)
    monkeypatch.setattr(ipvs, "remove", remove)
    assert main.status_of(["cleanup"]) == main.status_of(["cleanup", "--ipvs"]) == 1
    assert capsys.readouterr() == ("", "kubeproxy: not permitted\nkubeproxy: kube-proxy runs\n")


def test_cleanup_false_serves(served: FakeDaemon) -> None:
    assert main.status_of(["run", "--cleanup=false", "--write-config-to=", "--manifests=/tmp"]) == 7
