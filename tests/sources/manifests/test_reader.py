"""Large readings, parsed by several processes: the same comes of them, whatever happens to the processes."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeproxy.kubernetes.manifests.values import Value
from kubeproxy.sources.manifests import parser_pool, parser_process, reader
from kubeproxy.sources.manifests.check import check
from kubeproxy.sources.manifests.documents import Namespaces, Part, Reading, compose, outline, read
from kubeproxy.sources.manifests.parser_pool import ParserPool
from kubeproxy.sources.manifests.reader import Reader
from tests.kubernetes.manifests.texts import endpoint_slice, join, service
from tests.sources.manifests.test_source import following

ANY = Namespaces()
DEADLINE_S = 30.0
DOCUMENTS = st.one_of(
    st.builds(service, st.sampled_from("abc"), port=st.sampled_from([80, "x", "yes", 0, 1.5, "~", "1_0"])),
    st.builds(endpoint_slice, st.sampled_from("abc"), st.sampled_from(["10.1.0.1", "2001:db8::1", "nowhere"])),
    st.sampled_from(
        [
            "kind: Service\n  bad: [\n",
            "a: 'unfinished\n",
            "{apiVersion: v1, kind: Service, metadata: {name: braces}}\n",
            '{"apiVersion": "v1", "kind": "Service", "metadata": {"name": "json"}, "spec": {"clusterIP": 5}}\n',
            "apiVersion: v1\nkind: Service\nmetadata: &m {name: d, labels: {x: *m}}\n",
            "apiVersion: v1\nkind: Service\nmetadata: &m {name: d}\nspec: {clusterIP: *m, ports: [{port: 80}]}\n",
            "apiVersion: v1\nkind: Service\nmetadata: {name: &n d}\nspec: {clusterIP: *n}\n",
            "apiVersion: v1\nkind: Service\nmetadata: {name: é\U0001f600, name: twice}\n",
            'apiVersion: v1\nkind: Service\nmetadata: {name: "\\ud800"}\n',
            "apiVersion: apps/v1\nkind: Deployment\nmetadata: {name: d}\n",
            "null\n",
            "# nothing\n",
            "just words\n",
            "- 1\n- 2\n",
            "a: b\n...\napiVersion: v1\nkind: Service\nmetadata: {name: after}\n",
            "apiVersion: v1\nkind: ServiceList\nitems:\n- metadata: {name: l}\n  spec: {clusterIP: 10.0.0.1}\n- [\n",
            "apiVersion: v2\nkind: List\nitems:\n- metadata: {name: l}\n",
            "apiVersion: v1\nkind: List\nitems:\n- kind: Service\n  apiVersion: v1\n  metadata: {name: m}\n- null\n",
            f"a: {'[' * 120}\n",
            f"apiVersion: v1\nkind: Service\nmetadata: {{name: d}}\nspec: {{clusterIP: {10**25}, ports: {2**63}}}\n",
        ]
    ),
)
FILES = st.lists(st.one_of(st.lists(DOCUMENTS, max_size=8).map(lambda some: join(*some).encode()), st.binary()))


@pytest.fixture(autouse=True)
def _worth_it(monkeypatch: pytest.MonkeyPatch) -> None:
    """Helpers for a handful of bytes, and question by question."""
    monkeypatch.setattr(reader, "LARGE", 1)
    monkeypatch.setattr(parser_pool, "WORTHWHILE", 1)
    monkeypatch.setattr(parser_pool, "BATCH", 1)
    monkeypatch.setattr(parser_pool, "BEAT_S", 0.1)
    monkeypatch.setattr(parser_pool, "SILENT_BEATS", 20)


@pytest.fixture
def log() -> Iterator[list[Mapping[str, object]]]:
    with structlog.testing.capture_logs() as entries:
        yield entries  # type: ignore[misc]  # they are such mappings, and more


def many(count: int) -> dict[str, bytes]:
    return {
        f"{number}.yaml": join(
            service(f"s{number}"), endpoint_slice(f"s{number}", "10.1.0.1"), f"broken: [{number}"
        ).encode()
        for number in range(count)
    }


def here(files: Mapping[str, bytes], previous: Mapping[str, Reading] | None = None) -> dict[str, Reading]:
    return {name: read(data, ANY, (previous or {}).get(name)) for name, data in files.items()}


def together(
    files: Mapping[str, bytes], previous: Mapping[str, Reading] | None = None
) -> dict[str, Reading | MemoryError]:
    size = sum(map(len, files.values()))
    return dict(Reader(ANY, cpus=3).read_all(files.items(), size=size, previous=previous or {}, urgent=True))


def children() -> set[int]:
    found = set()
    for task in Path("/proc/self/task").iterdir():
        with suppress(FileNotFoundError):  # a thread that has just ended has none
            found |= set(map(int, (task / "children").read_text().split()))
    return found


@settings(max_examples=10, deadline=None)
@given(FILES)
def test_the_same_as_read_one_by_one(files: list[bytes]) -> None:
    named = {f"{number}.yaml": data for number, data in enumerate(files)}
    assert together(named) == here(named)


@settings(max_examples=300, deadline=None)
@given(FILES)
def test_what_a_helper_answers_means_what_was_written(files: list[bytes]) -> None:
    """The same, without processes."""

    class Asked(ParserPool):
        def _start(self) -> None:
            pass

        def _ask(self) -> None:
            while self._waiting:
                batch = self._waiting.popleft()
                batch.settle([parser_process.answer(text) for text in batch.texts])

    for data in files:
        with Asked(1, urgent=True) as asked:
            documents = list(outline(data))
            for part in (part for parts in documents for part in parts):
                asked.submit(part)
            assert compose(documents, ANY, None, asked.parse) == read(data, ANY)


async def test_the_source_reads_with_helpers(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Urgently when it starts; later on, whoever moves bytes goes first."""
    asked: list[bool] = []

    class Watched(ParserPool):
        def __init__(self, size: int, *, urgent: bool) -> None:
            super().__init__(size, urgent=urgent)
            asked.append(urgent)

    monkeypatch.setattr(parser_pool, "ParserPool", Watched)
    for name, data in many(40).items():
        (tmp_path / name).write_bytes(data)
    async with following(tmp_path, cpus=3) as (listener, followed):
        assert len(listener.services) == len(listener.slices) == 40
        assert len(followed.state().problems) == 40
        assert asked == [True]
        (tmp_path / "3.yaml").write_text(service("s3", "10.0.0.9"))
        await listener.until(lambda: listener.addresses["s3"] == "10.0.0.9")
        assert asked[1:] == [False]
    assert not children()


def test_a_check_with_helpers(tmp_path: Path) -> None:
    for name, data in many(40).items():
        (tmp_path / name).write_bytes(data)
    assert check([str(tmp_path)], cpus=3) == check([str(tmp_path)])


def test_everything_was_parsed_elsewhere(monkeypatch: pytest.MonkeyPatch) -> None:
    files = {name: data.replace(b"broken: [", b"broken: ") for name, data in many(60).items()}
    expected = here(files)

    def refuse(part: Part) -> list[Value]:
        pytest.fail(f"{part} was parsed here")

    monkeypatch.setattr(parser_pool, "parse_here", refuse)
    assert together(files) == expected
    assert not children()


def test_only_what_changed_is_parsed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    files = many(5)
    before = here(files)
    files["3.yaml"] = join(service("s3", "10.0.0.9"), endpoint_slice("s3", "10.1.0.1")).encode()
    submitted = []
    monkeypatch.setattr(ParserPool, "submit", lambda self, part: submitted.append(part.text))
    after = together(files, before)
    assert [text for text in submitted if b"broken" not in text] == [service("s3", "10.0.0.9").encode()]
    assert after == here(files, before)


def test_a_large_manifest_of_which_little_changed_needs_no_helper(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_pool, "WORTHWHILE", 1 << 20)
    monkeypatch.setattr(ParserPool, "_start", lambda self: pytest.fail("for one document"))
    text = join(*(service(f"s{number}") for number in range(2000)))
    before = here({"a": text.encode()})
    changed = {"a": text.replace("name: s7}", "name: new}").encode()}
    assert together(changed, before) == here(changed, before)


def test_few_bytes_need_no_crew_and_neither_does_one_processor(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParserPool, "__init__", lambda *arguments, **options: pytest.fail("not worth it"))
    files = many(3)
    size = sum(map(len, files.values()))
    for cpus, large in ((1, 1), (4, size + 1)):
        monkeypatch.setattr(reader, "LARGE", large)
        read_all = Reader(ANY, cpus).read_all(files.items(), size=size, previous={}, urgent=True)
        assert dict(read_all) == here(files)


@pytest.mark.parametrize(
    "text",
    [
        b'{"apiVersion": "v1"}',
        b"a: &name x\nb: *name",
        b"a: " + b"x" * parser_pool.LONGEST,
    ],
    ids=["JSON", "values that are referred to", "as long as a hang"],
)
def test_nobody_is_asked(text: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ParserPool, "_start", lambda self: pytest.fail("asked"))
    with ParserPool(1, urgent=True) as no_endpoint:
        ((part,),) = outline(text)
        no_endpoint.submit(part)
        assert no_endpoint.parse(part)


class _Harmed(ParserPool):
    """One whose helpers get into trouble once they are busy."""

    def __init__(self, signals: Sequence[int]) -> None:
        super().__init__(2, urgent=True)
        self._signals = signals

    def _start(self) -> None:
        super()._start()
        for each, number in zip(self._helpers, self._signals, strict=False):
            os.kill(each.process.pid, number)


@pytest.mark.parametrize(
    ("signals", "lost", "reason"),
    [
        ([signal.SIGKILL], 1, ""),
        ([signal.SIGKILL, signal.SIGKILL], 2, ""),
        ([signal.SIGSTOP], 1, "it has not answered for 2 s"),
        ([signal.SIGSTOP, signal.SIGSTOP], 2, "it has not answered for 2 s"),
    ],
)
def test_a_helper_that_dies_or_hangs(
    signals: list[int],
    lost: int,
    reason: str,
    monkeypatch: pytest.MonkeyPatch,
    log: list[Mapping[str, object]],
) -> None:
    monkeypatch.setattr(parser_pool, "ParserPool", lambda cpus, *, urgent: _Harmed(signals))
    files = many(100)
    begun = time.monotonic()
    assert together(files) == here(files)
    assert time.monotonic() - begun < DEADLINE_S
    assert len(log) == lost
    for entry in log:
        assert entry["log_level"] == "warning"
        assert str(entry["event"]).startswith("a helper process that parses manifests was lost")
        assert entry["status"] == -signal.SIGKILL
        assert reason in str(entry["reason"])
    assert not children()


@pytest.mark.parametrize(
    "program",
    [
        "import os; os.write(0, b'\\0\\0\\0\\4nope')",
        "import os; os.write(0, b'\\0\\0\\0\\1\\x90')",
        "import os, sys; os.read(0, 9); os.write(0, b'\\0\\0\\0\\2\\x91\\xc0' * 99); os.read(0, 9); sys.exit(3)",
        "import sys; sys.exit(3)",
        "import os; os.kill(os.getpid(), 11)",
    ],
)
def test_a_helper_that_talks_nonsense(
    program: str, monkeypatch: pytest.MonkeyPatch, log: list[Mapping[str, object]]
) -> None:
    command = (sys.executable, "-c", program)
    monkeypatch.setattr(
        parser_pool, "ParserPool", lambda cpus, *, urgent: ParserPool(cpus, urgent=urgent, command=command)
    )
    files = many(20)
    assert together(files) == here(files)
    assert log
    assert not children()


def test_a_helper_that_cannot_be_started(monkeypatch: pytest.MonkeyPatch, log: list[Mapping[str, object]]) -> None:
    command = ("/nowhere/python",)
    monkeypatch.setattr(
        parser_pool, "ParserPool", lambda cpus, *, urgent: ParserPool(cpus, urgent=urgent, command=command)
    )
    files = many(20)
    assert together(files) == here(files)
    assert [entry["reason"] for entry in log] == ["No such file or directory"]


def test_nobody_is_left_when_a_reading_is_given_up() -> None:
    files = many(100)
    reading = Reader(ANY, cpus=3).read_all(files.items(), size=1, previous={}, urgent=False)
    next(reading)
    assert len(children()) == 3
    reading.close()  # type: ignore[attr-defined]  # it is a generator
    assert not children()


@pytest.mark.parametrize("stopped", [False, True])
def test_helpers_end_with_who_started_them(stopped: bool) -> None:
    """Killed as suddenly as can be, even while they are stopped themselves."""
    program = f"""
        import os, signal, sys, time
        from kubeproxy.sources.manifests import parser_pool as crew
        from kubeproxy.sources.manifests.documents import outline
        crew.WORTHWHILE = 1
        parts = [next(outline(b"a: %d\\nb: " % number + b"x" * 500))[0] for number in range(500)]
        with crew.ParserPool(2, urgent=True) as some:
            for part in parts:
                some.submit(part)
            for part in parts:  # so that each of them has answered
                some.parse(part)
            for each in some._helpers:
                {stopped} and os.kill(each.process.pid, signal.SIGSTOP)
            print(*(each.process.pid for each in some._helpers), flush=True)
            time.sleep(60)
    """
    with subprocess.Popen([sys.executable, "-c", textwrap.dedent(program)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        helpers = [int(pid) for pid in process.stdout.readline().split()]
        assert len(helpers) == 2
        process.kill()
    deadline = time.monotonic() + DEADLINE_S
    while any(_alive(pid) for pid in helpers):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_a_helper_has_no_privileges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parser_pool, "WORTHWHILE", 1)
    part = next(outline(b"a: 1\nb: " + b"x" * 500))[0]
    with ParserPool(2, urgent=True) as some:
        some.submit(part)
        some.parse(part)  # so that it has answered
        text = Path(f"/proc/{some._helpers[0].process.pid}/status").read_text()
    status = dict(line.split(":\t", 1) for line in text.splitlines() if ":\t" in line)
    assert [int(status[field], 16) for field in ("CapPrm", "CapEff", "CapInh", "CapAmb")] == [0] * 4
    assert status["NoNewPrivs"] == "1"


def test_a_helper_imports_little() -> None:
    program = "import sys, kubeproxy.sources.manifests.parser_process; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True).stdout.split()
    assert not {"asyncio", "aiohttp", "structlog", "uvloop", "watchfiles", "logging"} & set(loaded)


def test_a_random_mixture_of_large_and_small() -> None:
    """Several questions in the hands of each, and a text that nobody is asked about."""
    some = random.Random(7)
    files = {
        f"{number}.yaml": join(*(service(f"s{some.random()}") for _ in range(some.choice([0, 1, 5, 300])))).encode()
        for number in range(30)
    }
    files["large.yaml"] = b"apiVersion: v1\nkind: Secret\ndata: " + b"x" * (parser_pool.LONGEST + 1)
    assert together(files) == here(files)
