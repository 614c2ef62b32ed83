"""``kubeproxy create`` as it is typed: flags, files and standard input, what it imports, what an interrupt leaves."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kubeproxy.cli import main
from tests.support.apiserver import ApiServer, Fault, command_cluster
from tests.support.web_server import in_thread

PROGRAM = str(Path(sys.executable).with_name("kubeproxy"))
MAP = "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: %s}\n"


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ApiServer]:
    with in_thread(ApiServer(command_cluster(), tokens={"good"})) as found:
        config = {
            "current-context": "it",
            "contexts": [{"name": "it", "context": {"cluster": "it", "user": "it"}}],
            "clusters": [{"name": "it", "cluster": {"server": found.url}}],
            "users": [{"name": "it", "user": {"token": "good"}}],
        }
        (tmp_path / "config").write_text(json.dumps(config))
        monkeypatch.setenv("KUBECONFIG", str(tmp_path / "config"))
        monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
        monkeypatch.chdir(tmp_path)
        yield found


def created(server: ApiServer) -> list[str]:
    """Return the names of the ConfigMaps, in the order of their creation."""
    return server.cluster.names("configmaps")


def run(*args: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [PROGRAM, "create", *args], input=stdin, capture_output=True, text=True, timeout=60, check=False
    )


def test_files_and_standard_input(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MAP % "a")
    done = run("-f", "a.yaml", "-f=-", "-o", "name", stdin=MAP % "b")
    assert (done.returncode, done.stdout, done.stderr) == (0, "configmap/a\nconfigmap/b\n", "")
    assert created(server) == ["a", "b"]


def test_raw(server: ApiServer) -> None:
    path = "/api/v1/namespaces/default/configmaps"
    done = run("--raw", path, "-f", "-", stdin=json.dumps({"kind": "ConfigMap", "metadata": {"name": "r"}}))
    assert (done.returncode, json.loads(done.stdout)["kind"], created(server)) == (0, "ConfigMap", ["r"])


Said = tuple[int, str, str]
Command = Callable[..., Said]


@pytest.fixture
def create(capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Command:
    """Run the command in this process; return its exit status and what it has said."""
    monkeypatch.setattr(sys, "stdin", sys.__stdin__)  # pytest's own has no descriptor

    def run(*args: str) -> Said:
        monkeypatch.setattr(sys, "argv", [PROGRAM, "create", *args])
        return main.status_of(["create", *args]), *capfd.readouterr()

    return run


def test_edit(server: ApiServer, create: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "a.yaml").write_text(MAP % "a")
    monkeypatch.setenv("KUBE_EDITOR", "sed -i s/'name: a'/'name: edited'/")
    assert create("-f", "a.yaml", "--edit") == (0, "configmap/edited created\n", "")
    monkeypatch.setenv("KUBE_EDITOR", "true")
    assert create("-f", "a.yaml", "--edit", "-o", "json") == (0, "", "Edit cancelled, no changes made.\n")
    monkeypatch.setenv("KUBE_EDITOR", "truncate -s 0")
    assert create("-f", "a.yaml", "--edit")[0] == 1
    monkeypatch.setenv("KUBE_EDITOR", "echo 'kind: [' >>")
    assert "error parsing edited-file" in create("-f", "a.yaml", "--edit")[2]
    assert created(server) == ["edited"]


def test_flags_as_kubectl_takes_them(server: ApiServer, create: Command, tmp_path: Path) -> None:
    server.tokens = {"good", "secret"}
    (tmp_path / "a.yaml").write_text(MAP % "a")
    code, out, err = create(
        "-f=a.yaml", "--dry_run=client", "--save-config=true", "--validate", "--edit=false", "-ojson"
    )
    assert code == 0, err
    assert "last-applied-configuration" in out
    deprecated = "Warning: --dry-run is deprecated and can be replaced with --dry-run=client.\n"
    assert create("-f", "a.yaml", "--dry-run") == (0, "configmap/a created (dry run)\n", deprecated)
    _, recorded, _ = create(
        "-f", "a.yaml", "--record", "--token=secret", "--dry-run=client", "-o", "jsonpath={.metadata.annotations}"
    )
    assert recorded == (
        '{"kubernetes.io/change-cause":"kubeproxy create --filename=a.yaml --record=true --dry-run=client'
        ' --output=jsonpath={.metadata.annotations}"}'
    )
    assert created(server) == []


@pytest.mark.parametrize(
    ("args", "expected"),
    [
        ([], "error: must specify -f"),
        (["-f", "x", "more"], "error: Unexpected args: [more]\nSee 'kubeproxy create -h' for help and examples\n"),
        (["--nope"], "error: unknown flag: --nope\nSee 'kubeproxy create --help' for usage.\n"),
        (["-f"], "error: flag needs an argument: -f\n"),
        (["-f", "x", "--edit=maybe"], 'error: invalid argument "maybe" for "--edit" flag'),
        (["-f", "x", "--dry-run=x"], 'error: Invalid dry-run value (x). Must be "none", "server", or "client".\n'),
        (["-f", "x", "--validate=x"], 'error: invalid - validate option "x"; must be one of: strict'),
        (["-f", "x", "--parallel=0"], "error: "),
        (["-f", "x", "--request-timeout=soon"], "error: --request-timeout: found 'soon'; allowed: a duration"),
        (["-f", "x", "--raw=/a", "--edit"], "error: --raw and --edit are mutually exclusive\n"),
        (["-f", "x", "-f", "y", "--raw=/a"], "error: --raw can only use a single local file or stdin\n"),
        (["-f", "http://x/y", "--raw=/a"], "error: --raw cannot read from a url\n"),
        (["-f", "x", "--raw=a"], "error: --raw must be a valid URL path"),
        (["-f", "x", "--kubeconfig=/nowhere"], "error: --kubeconfig: /nowhere: no such file\n"),
        (["-f", "/nowhere/x"], 'error: the path "/nowhere/x" does not exist\n'),
        (["-f", "x", "-o", "nope"], 'error: unable to match a printer suitable for the output format "nope"'),
    ],
)
def test_a_wrong_command_line_is_exit_status_1(
    args: list[str], expected: str, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    assert main.status_of(["create", *args]) == 1
    assert capfd.readouterr().err.startswith(expected)


def test_help_imports_no_client() -> None:
    script = (
        "import sys; from kubeproxy.cli.main import status_of; status_of(['create', '--help'])\n"
        "print([name for name in ('aiohttp', 'asyncio', 'yaml', 'msgspec') if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stderr == "[]\n"


def test_creating_imports_neither_the_large_client_nor_the_daemon(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(MAP % "a")
    heavy = ("kubernetes_asyncio", "structlog", "iptc", "prometheus_client", "kubeproxy.daemon", "kubeproxy.proxier")
    script = (
        "import sys; from kubeproxy.cli.main import status_of; status_of(['create', '-f', 'a.yaml'])\n"
        f"print([name for name in {heavy!r} if name in sys.modules], file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert (done.stdout, done.stderr) == ("configmap/a created\n", "[]\n")


def test_an_interrupt_ends_it_and_tells_what_is_left(server: ApiServer, tmp_path: Path) -> None:
    server.inject(Fault(kind="slow", method="POST", delay_s=0.1, times=-1))
    (tmp_path / "many.yaml").write_text("---\n".join(MAP % f"c{number}" for number in range(500)))
    process = subprocess.Popen(
        [PROGRAM, "create", "-f", "many.yaml"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "configmap/c0 created\n"
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.startswith(f"interrupted: {len(created(server))} created; not created: ")
    assert "of many.yaml" in err
    assert "Traceback" not in err
    assert out.splitlines() == [f"configmap/{name} created" for name in created(server)[1:]]


def test_an_interrupt_while_standard_input_is_waited_for(server: ApiServer) -> None:
    process = subprocess.Popen(
        [PROGRAM, "create", "-f", "-"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        bufsize=0,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{MAP % 'a'}---\n{MAP % 'b'}---\n")
    process.stdin.flush()
    assert process.stdout.readline() == "configmap/a created\n"  # before the input has ended
    process.send_signal(signal.SIGINT)
    process.wait(timeout=30)  # with its standard input still open
    _, err = process.communicate(timeout=30)
    assert process.returncode == 130
    assert err.startswith("interrupted: ")


def test_progress_is_shown_on_a_terminal(server: ApiServer, tmp_path: Path) -> None:
    server.inject(Fault(kind="slow", method="POST", delay_s=0.3, times=-1))
    (tmp_path / "many.yaml").write_text("---\n".join(MAP % f"c{number}" for number in range(12)))
    leader, follower = pty.openpty()
    try:
        process = subprocess.Popen(
            [PROGRAM, "create", "-f", "many.yaml", "--parallel=2"], stdout=subprocess.PIPE, stderr=follower, text=True
        )
        out, _ = process.communicate(timeout=60)
        os.set_blocking(leader, False)
        shown = os.read(leader, 65536).decode()
    finally:
        os.close(leader)
        os.close(follower)
    assert process.returncode == 0
    assert len(out.splitlines()) == 12
    assert " created, 1 s" in shown or " created, 2 s" in shown
    assert shown.endswith("\r\x1b[K")


def test_a_reader_that_goes_away_is_no_traceback(server: ApiServer, tmp_path: Path) -> None:
    (tmp_path / "many.yaml").write_text("---\n".join(MAP % f"c{number}" for number in range(200)))
    done = subprocess.run(
        ["sh", "-c", f"{PROGRAM} create -f many.yaml -o yaml | head -1"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.stdout == "apiVersion: v1\n"
    assert "Traceback" not in done.stderr


def test_a_long_stream_takes_no_more_memory_than_a_short_one(server: ApiServer, tmp_path: Path) -> None:
    def most_kib(count: int) -> int:
        path = tmp_path / f"{count}.yaml"
        path.write_text("---\n".join(MAP % f"c{number}" for number in range(count)))
        command = [PROGRAM, "create", "-f", str(path), "--dry-run=client", "-o", "name"]
        with open(tmp_path / "out", "wb") as out:
            process = subprocess.Popen(command, stdout=out)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0
        assert len((tmp_path / "out").read_text().splitlines()) == count
        return usage.ru_maxrss

    assert most_kib(3_000) - most_kib(200) < 4 << 10
