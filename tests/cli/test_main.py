"""The commands on the command line: output, stream and exit status."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kubeproxy.cli import main
from kubeproxy.model.errors import ClusterError
from kubeproxy.model.version import __version__
from kubeproxy.runtime import compiled
from tests.config.files import write

HEAVY = ("kubernetes_asyncio", "iptc", "aiohttp", "prometheus_client", "uvloop", "structlog", "asyncio", "watchfiles")


@pytest.mark.parametrize("args", [["--help"], ["-h"], ["run", "--help"], ["check", "-h"], ["cleanup", "--help"]])
def test_help(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(args) == 0
    out, err = capsys.readouterr()
    assert out.startswith("Usage: kubeproxy")
    assert err == ""


@pytest.mark.parametrize("words", [[], ["status"], ["rollout", "undo"]], ids=" ".join)
def test_help_is_a_word_too(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["help", *words]) == 0
    by_word = capsys.readouterr()
    assert main.status_of([*words, "--help"]) == 0
    assert capsys.readouterr() == by_word
    assert main.status_of(["help", "nothing"]) == 64
    assert "No such command 'nothing'" in capsys.readouterr().err


def test_help_names_every_flag_under_its_heading(capsys: pytest.CaptureFixture[str]) -> None:
    main.status_of(["run", "--help"])
    out, _ = capsys.readouterr()
    ours, _, without_effect = out.partition("Settings that override the file")[2].partition("without effect:")
    assert "--dial-timeouts DURATION,…" in ours
    assert "[250ms,500ms,1s,2s]" in ours
    assert "--show-hidden-metrics-for-version," in without_effect
    assert "--write-config-to TEXT" in out
    assert "--cleanup[=true|false]" in out


@pytest.mark.parametrize("args", [["--version"], ["run", "--version"], ["run", "--version=raw", "--v=x"]])
def test_version(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(args) == 0
    assert capsys.readouterr().out == f"kubeproxy {__version__}\n"


def test_version_says_how_the_byte_path_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of(["version"]) == 0
    assert capsys.readouterr().out == f"kubeproxy {__version__}\nbyte path: {compiled.form()}\n"


@pytest.mark.parametrize(
    ("args", "text"),
    [
        (["rnu"], "No such command 'rnu'. Did you mean 'run'?"),
        (["run", "--proxymode=x"], "No such option '--proxymode'. Did you mean '--proxy-mode'? (see"),
        (["run", "--nod-port=1"], "Did you mean '--node-port-conflict' or '--nodeport-addresses'? (see"),
        (["run", "--dry"], "No such option '--dry'. (see"),
        (["run", "--netfliter", "none"], "'--netfilter'"),
        (["--nonsense"], "--nonsense"),
        (["run", "--master"], "requires an argument"),
        (["run", "extra"], "extra"),
        (["run", "--cleanup", "false"], "false"),
        (["check", "--cleanup"], "--cleanup"),
        (["cleanup", "now"], "now"),
        (["run", "--netfilter=ebpf"], '--netfilter: found "ebpf"; allowed: auto, iptables, nftables or none'),
        (["run", "--config=/does/not/exist"], '--config: found "/does/not/exist" (No such file or directory)'),
        (["run"], "no source of Services"),
        (["check", "--config=/does/not/exist"], "--config: found"),
        (["run", "--write-config-to=/does/not/exist"], "--write-config-to: found"),
    ],
)
def test_a_wrong_command_line_ends_with_64_and_one_line(
    args: list[str], text: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    assert main.status_of(args) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert text in err
    assert err.count("\n") == 1


def test_no_command_prints_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.status_of([]) == 64
    out, err = capsys.readouterr()
    assert out == ""
    assert err.startswith("Usage: kubeproxy")
    assert "check" in err


def test_other_errors_end_with_1(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*args: object, **kwargs: object) -> int:
        raise ClusterError("the API server is away")

    monkeypatch.setattr(main.commands, "main", fail)
    assert main.status_of([]) == 1
    assert capsys.readouterr().err == "kubeproxy: the API server is away\n"


def _process(*args: str) -> subprocess.CompletedProcess[str]:
    bin_directory = Path(sys.executable).parent
    program, *rest = args
    return subprocess.run([bin_directory / program, *rest], capture_output=True, text=True, timeout=60, check=False)


def test_the_console_scripts(tmp_path: Path) -> None:
    config = write(tmp_path, "mode: fast\noomScoreAdj: 2000\n")
    found = _process("kubeproxy", "run", "--config", config, "-v=2", "--netfilter=none", "--kubernetes=never")
    assert (found.returncode, found.stdout, found.stderr.count("\n")) == (64, "", 2)
    assert found.stderr.startswith('kubeproxy: mode: found "fast"; allowed: ')
    assert _process("kubeproxy", "--version").stdout == f"kubeproxy {__version__}\n"
    assert _process("kubeproxy", "check", "--config", config).returncode == 64


def test_a_closed_pipe_causes_no_traceback() -> None:
    bin_directory = Path(sys.executable).parent
    with subprocess.Popen(
        [bin_directory / "kubeproxy", "run", "--help"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(timeout=60) == 1


@pytest.mark.parametrize("args", [["--help"], ["run", "--help"], ["run", "--version"], ["check", "--v=2"]])
def test_small_commands_import_no_heavy_modules(args: list[str]) -> None:
    program = (
        "import json, sys\n"
        "from kubeproxy.cli.main import status_of\n"
        f"status = status_of({args!r})\n"
        f"print('\\n' + json.dumps([status, [name for name in {HEAVY!r} if name in sys.modules]]))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(found.stdout.splitlines()[-1]) == [0, []]


def test_missing_standard_streams_are_opened(tmp_path: Path) -> None:
    """A process started with `2>&-` opens them, also for its child processes."""
    output = tmp_path / "output"
    code = f"""if True:
        import sys
        from kubeproxy.cli import main
        def status_of(args):
            import os, subprocess
            subprocess.run(["sh", "-c", "readlink /proc/self/fd/0 /proc/self/fd/1 /proc/self/fd/2 > {output}"])
            print("not shown")
            print("not shown", file=sys.stderr)
        main.status_of = status_of
        main.main()
    """
    command = ["sh", "-c", 'exec "$@" <&- >&- 2>&-', "sh", sys.executable, "-c", code]
    assert subprocess.run(command, check=False, timeout=30).returncode == 0
    # The shell has redirected 1.
    assert output.read_text().split() == ["/dev/null", str(output), "/dev/null"]
