"""What servers, daemons and tenants write reaches a terminal as text: no command lets a control character through."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Iterator
from contextlib import redirect_stderr, redirect_stdout
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any, ClassVar

import msgspec
import pytest

from kubeproxy.cli import main
from kubeproxy.controllers.manager.pages import status_text
from kubeproxy.model.printable import printable
from kubeproxy.observability.status.document import Status
from tests.observability.status.observation import shop
from tests.observability.status.test_build import whole
from tests.support.places import places, replaced

EVIL = "\x1b]0;PWNED\x07\x1b[2J\x9b31m\u202eright to left\u2066\nforged line\r\x00\x7f\u2028"
"""OSC, CSI, C1, changes of the writing direction, line breaks, NUL, DEL."""


class Terminal(io.StringIO):
    """A stream that says it is a terminal, or a pipe."""

    def __init__(self, *, terminal: bool) -> None:
        super().__init__()
        self._terminal = terminal

    def isatty(self) -> bool:
        return self._terminal


def harmless(text: str) -> None:
    """Assert that it is lines of text, some with colours (SGR), and that what was evil is still there to be read."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    odd = {each for each in plain if not each.isprintable() and each != "\n"}
    assert not odd, (odd, text)
    assert not any(line.lstrip().startswith("forged line") for line in plain.splitlines())
    assert "PWNED" in text.replace("\n", "")


# Commands that ask an API server


def metadata(name: str, **more: Any) -> dict[str, Any]:
    return {"name": name, "namespace": "evil", "uid": f"uid-{name}", "resourceVersion": "1", "generation": 1} | more


def owned_by(kind: str, name: str) -> list[dict[str, Any]]:
    return [{"apiVersion": "apps/v1", "kind": kind, "name": name, "uid": f"uid-{name}", "controller": True}]


TEMPLATE = {
    "metadata": {"labels": {"app": "d"}, "annotations": {"note": EVIL}},
    "spec": {"containers": [{"name": "c", "image": f"web:{EVIL}"}]},
}
DEPLOYMENT = {
    "apiVersion": "apps/v1",
    "kind": "Deployment",
    "metadata": metadata("d", annotations={"deployment.kubernetes.io/revision": "1"}) | {"name": f"d{EVIL}"},
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": TEMPLATE},
    "status": {
        "observedGeneration": 1,
        "replicas": 1,
        "conditions": [{"type": "Progressing", "status": "False", "reason": EVIL, "message": EVIL}],
    },
}
REPLICA_SET = {
    "metadata": metadata(
        "rs",
        annotations={"deployment.kubernetes.io/revision": "1", "kubernetes.io/change-cause": EVIL},
        ownerReferences=owned_by("Deployment", "d"),
    ),
    "spec": {"replicas": 1, "selector": {"matchLabels": {"app": "d"}}, "template": TEMPLATE},
    "status": {"replicas": 1},
}
POD = {
    "metadata": metadata("pod", labels={"app": "d"}, ownerReferences=owned_by("ReplicaSet", "rs")),
    "spec": {"nodeName": f"node{EVIL}"},
    "status": {
        "phase": "Pending",
        "conditions": [{"type": "PodScheduled", "status": "False", "reason": f"No{EVIL}", "message": EVIL}],
        "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": f"Bad{EVIL}", "message": EVIL}}}],
    },
}
EVENT = {"type": "Warning", "reason": EVIL, "message": EVIL, "involvedObject": {"kind": "Pod", "name": "pod"}}
ANSWERS: list[tuple[str, Any]] = [
    (r"/deployments/d$", DEPLOYMENT),
    (r"/replicasets$", {"metadata": {"resourceVersion": "1"}, "items": [REPLICA_SET]}),
    (r"/pods$", {"metadata": {"resourceVersion": "1"}, "items": [POD]}),
    (r"/events$", {"metadata": {"resourceVersion": "1"}, "items": [EVENT]}),
]


class Hostile(BaseHTTPRequestHandler):
    """An API server and a daemon that answer what `answers` has, and refuse the rest in evil words."""

    answers: ClassVar[list[tuple[str, Any]]] = []
    code = 422
    server_version = "kubeproxy"
    """By which a command takes the answers for a daemon's."""

    def do_GET(self) -> None:
        path = self.path.partition("?")[0]
        for pattern, answer in self.answers:
            if re.search(pattern, path):
                self._send(200, answer)
                return
        details = {"kind": EVIL, "name": EVIL, "causes": [{"field": EVIL, "message": EVIL}, {"message": EVIL}]}
        status = {"kind": "Status", "apiVersion": "v1", "reason": "Invalid", "message": EVIL, "details": details}
        self._send(self.code, status | {"status": "Failure", "code": self.code})

    do_POST = do_PATCH = do_PUT = do_GET

    def _send(self, code: int, answer: Any) -> None:
        self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = json.dumps(answer, ensure_ascii=False).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Warning", '299 - "PWNED \x1b]0;W\x07\x9b31m"')
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        return


@pytest.fixture
def address() -> Iterator[str]:
    """Where such a server listens."""
    with ThreadingHTTPServer(("127.0.0.1", 0), Hostile) as server:
        thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


KINDS = pytest.mark.parametrize("terminal", [True, False], ids=["terminal", "pipe"])


def said(words: list[str], *, terminal: bool) -> tuple[str, str]:
    """What a command line prints, with both streams on a terminal or in pipes."""
    out, err = Terminal(terminal=terminal), Terminal(terminal=terminal)
    with redirect_stdout(out), redirect_stderr(err):
        main.status_of(words)
    return out.getvalue(), err.getvalue()


@KINDS
@pytest.mark.parametrize(
    "words",
    [
        ["rollout", "explain", "deployment/d"],
        ["rollout", "history", "deployment/d"],
        ["rollout", "history", "deployment/d", "--revision=1"],
        ["rollout", "status", "deployment/d", "--no-watch"],
        ["rollout", "status", "deployment/absent"],
        ["rolling-update", "absent", "--image=x"],
        ["create", "--validate=false", "-f"],
        ["create", "--raw=/api/v1/namespaces", "-f"],
    ],
    ids=" ".join,
)
def test_commands_with_a_server(
    words: list[str], terminal: bool, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Hostile, "answers", ANSWERS)
    (tmp_path / "it.yaml").write_text("{apiVersion: v1, kind: ConfigMap, metadata: {name: a}}")
    given = [str(tmp_path / "it.yaml")] if words[-1] == "-f" else []
    harmless("".join(said([*words, *given, f"--server=http://{address}", "-n", "evil"], terminal=terminal)))


# Commands that ask a daemon


def _evil(value: Any, keys: set[str], key: str = "") -> Any:
    """The value with the evil text behind every text that has one of these keys."""
    match value:
        case str():
            return value + EVIL if key in keys else value
        case list():
            return [_evil(each, keys, key) for each in value]
        case dict():
            return {name: _evil(each, keys, name) for name, each in value.items()}
        case _:
            return value


def _keys(value: Any) -> set[str]:
    match value:
        case dict():
            return set(value).union(*map(_keys, value.values()))
        case list():
            return set().union(*map(_keys, value))
        case _:
            return set()


def hostile_status() -> Any:
    """A status page with evil in every text that is no word of a closed list."""
    plain = msgspec.json.decode(msgspec.json.encode(whole(shop())))
    free = set()
    for key in _keys(plain):
        try:
            msgspec.convert(_evil(plain, {key}), Status)
        except msgspec.ValidationError:
            continue
        free.add(key)
    return _evil(plain, free)


@KINDS
@pytest.mark.parametrize(
    "words",
    [["status"], ["status", "web"], ["status", "-o", "json"], ["status", "--limit=0"], ["trace", "10.0.0.1:80"]],
    ids=" ".join,
)
def test_commands_with_a_daemon(
    words: list[str], terminal: bool, address: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = hostile_status()
    trace: dict[str, Any] = dict.fromkeys(("to", "source", "client", "hook", "reason", "service"), EVIL)
    trace |= {"protocol": "TCP", "outcome": "proxied", "steps": [EVIL, f" {EVIL}"], "previews": []}
    trace["frontend"] = page["services"][0]["frontends"][0]
    monkeypatch.setattr(Hostile, "answers", [(r"^/statusz", page), (r"^/trace", trace)])
    out, _ = said([*words, f"--address={address}"], terminal=terminal)
    if words[-1] == "json":
        assert json.loads(out) == page, "escaped, and still the same"
        if not terminal:
            return  # a program gets what the daemon has sent
    harmless(out)


def test_a_refusal_of_a_daemon(address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Hostile, "code", 403)
    harmless(said(["trace", "10.0.0.1:80", f"--address={address}"], terminal=True)[1])


# Pages and values


def test_the_page_of_the_controller_manager() -> None:
    rollout = dict.fromkeys(("namespace", "name", "state", "waitsFor", "since"), EVIL)
    rollout |= dict.fromkeys(("revision", "updated", "wanted", "available"), 1)  # type: ignore[arg-type]
    watch = {"resource": EVIL, "behindSeconds": 1.0, "lastError": EVIL}
    queue = {"name": EVIL} | dict.fromkeys(("waiting", "processing", "errors", "givenUp"), 0)
    document = {"leading": False, "leader": EVIL, "working": True, "rival": EVIL, "rolloutsTotal": 1, "gatesWaiting": 1}
    harmless(status_text(document | {"rollouts": [rollout], "queues": [queue], "watches": [watch]}))


@pytest.mark.parametrize("text", ["", "plain", "Ünïcödé 漢字 → …", '"quoted\\"'])
def test_text_that_prints_is_left_alone(text: str) -> None:
    assert printable(text) == text


def test_everything_else_is_escaped_as_json_would() -> None:
    everything = "".join(map(chr, [*range(0xD800), *range(0xE000, 0x20000), *range(0xE0000, 0xE0200)]))
    shown = printable(everything)
    assert shown.isprintable()
    body = everything.replace("\\", "").replace('"', "")
    assert json.loads(f'"{printable(body)}"') == body
    assert printable("\x1b\n\u202e\x9b\x7f\U000e0001") == "\\u001b\\n\\u202e\\u009b\\u007f\\udb40\\udc01"


# Objects of odd shapes


ODD = [None, True, -1, 10**30, "x", [], {}, [1], {"a": 1}, [None], "9" * 5000, "A" * 300_000]


@pytest.mark.parametrize("verb", ["explain", "history", "undo"])
def test_rollout_with_objects_of_odd_shapes(verb: str, address: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each ends with an exit status; none with a traceback."""
    numbers = iter(range(10**6))
    for place, (pattern, answer) in enumerate(ANSWERS):
        whole = answer["items"][0] if "items" in answer else answer
        for path in places(whole):
            odd = ODD[next(numbers) % len(ODD)]  # a kind in each place; all kinds in the course of it
            changed = replaced(whole, path, odd)
            changed = answer | {"items": [changed]} if "items" in answer else changed
            answers = [*ANSWERS[:place], (pattern, changed), *ANSWERS[place + 1 :]]
            monkeypatch.setattr(Hostile, "answers", answers)
            out, err = said(["rollout", verb, "deployment/d", f"--server=http://{address}"], terminal=False)
            assert out or err, (path, odd)
            assert "Traceback" not in err
