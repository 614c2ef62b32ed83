"""The whole source with real files, watches and web servers."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import os
import shutil
import time
from collections.abc import AsyncIterator, Callable, Iterable
from pathlib import Path

import pytest
from aiohttp import web

from kubeproxy.model import EndpointSlice, Service, ServiceName, SliceName
from kubeproxy.runtime.threads import ThreadNotStartedError
from kubeproxy.sources.manifests import reader, source
from kubeproxy.sources.manifests.check import check
from kubeproxy.sources.manifests.objects import Terms
from kubeproxy.sources.manifests.source import ManifestSource, Report
from kubeproxy.sources.sink import SourceName
from tests.kubernetes.manifests.texts import endpoint_slice, join, service
from tests.support.loop_turns import counted_turns

DEADLINE_S = 40.0


class Listener:
    """A sink that keeps its objects, its calls and the reports."""

    def __init__(self) -> None:
        self.services: dict[ServiceName, Service] = {}
        self.slices: dict[SliceName, EndpointSlice] = {}
        self.calls: list[str] = []
        self.reports: list[Report] = []

    def replace_services(self, source: SourceName, services: Iterable[Service]) -> None:
        self.calls.append("replace services")
        self.services = {service.name: service for service in services}

    def put_service(self, source: SourceName, service: Service) -> None:
        self.calls.append(f"put {service.name.name}")
        self.services[service.name] = service

    def remove_service(self, source: SourceName, name: ServiceName) -> None:
        self.calls.append(f"remove {name.name}")
        del self.services[name]

    def replace_slices(self, source: SourceName, slices: Iterable[EndpointSlice]) -> None:
        self.calls.append("replace slices")
        self.slices = {endpoint_slice.name: endpoint_slice for endpoint_slice in slices}

    def put_slice(self, source: SourceName, endpoint_slice: EndpointSlice) -> None:
        self.calls.append(f"put slice {endpoint_slice.name.name}")
        self.slices[endpoint_slice.name] = endpoint_slice

    def remove_slice(self, source: SourceName, name: SliceName) -> None:
        self.calls.append(f"remove slice {name.name}")
        del self.slices[name]

    @property
    def addresses(self) -> dict[str, str]:
        return {name.name: service.cluster_ips[0] for name, service in self.services.items()}

    def reported(self, text: str, *, resolved: bool = False) -> int:
        return sum(text in str(report.problem) for report in self.reports if report.resolved is resolved)

    async def until(self, condition: Callable[[], bool]) -> None:
        """Wait for a condition, at most until the deadline."""
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, (self.addresses, self.calls, self.reports)
            await asyncio.sleep(0.01)

    async def serves(self, **addresses: str) -> None:
        await self.until(lambda: self.addresses == addresses)


@contextlib.asynccontextmanager
async def following(
    *paths: Path | str, recursive: bool = False, enforced: str | None = None
) -> AsyncIterator[tuple[Listener, ManifestSource]]:
    listener = Listener()
    followed = ManifestSource(
        paths=[str(path) for path in paths],
        recursive=recursive,
        terms=Terms(enforced_namespace=enforced),
        sink=listener,
        on_report=listener.reports.append,
    )
    task = asyncio.create_task(followed.run())
    try:
        await listener.until(lambda: followed.state().loaded or task.done())
        yield listener, followed
    finally:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    path = tmp_path / "manifests"
    path.mkdir()
    return path


@pytest.fixture(autouse=True)
def _watched_not_polled(monkeypatch: pytest.MonkeyPatch) -> None:
    """Only watches detect changes."""
    monkeypatch.setattr(source, "POLL_S", 3600.0)


async def test_a_directory_from_start_to_deletion(directory: Path) -> None:
    (directory / "a.yaml").write_text(join(service("a"), endpoint_slice("a", "10.1.0.1")))
    (directory / "notes.txt").write_text("not a manifest: [")
    async with following(directory) as (listener, followed):
        assert listener.calls == ["replace slices", "replace services"]
        await listener.serves(a="10.0.0.1")
        (directory / "b.json").write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": []}))
        (directory / "c.yml").write_text(service("c"))
        await listener.serves(a="10.0.0.1", c="10.0.0.1")
        (directory / "c.yml").write_text(service("c", "10.0.0.2"))
        await listener.serves(a="10.0.0.1", c="10.0.0.2")
        (directory / "a.yaml").unlink()
        await listener.serves(c="10.0.0.2")
        await listener.until(lambda: not listener.slices)
        assert listener.calls.count("put c") == 2
        state = followed.state()
        assert (state.services, state.slices, state.paths[0].manifests, state.paths[0].objects) == (1, 0, 2, 1)
        assert state.last_change > 0


async def test_a_mistyped_restriction_keeps_the_last_good_version_and_other_mistakes_are_warnings(
    directory: Path,
) -> None:
    path = directory / "a.yaml"
    good = service("a")
    path.write_text(good)
    async with following(directory) as (listener, followed):
        path.write_text(service("a", "10.0.0.2").replace("spec:", "spec:\n  loadBalancerSourceRange: [10.0.0.0/8]"))
        await listener.until(lambda: listener.reported("spec.loadBalancerSourceRange: unknown field, refused") == 1)
        assert listener.addresses == {"a": "10.0.0.1"}
        assert followed.state().complaint == f"fault in {path} document 1"
        path.write_text(service("a", "10.0.0.2").replace("spec:", "spec:\n  novelty: 1"))
        await listener.serves(a="10.0.0.2")
        assert followed.state().complaint is None, "a warning takes nothing out of effect"
        assert [it.warning for it in followed.state().problems] == [True]
        path.write_text(good)
        await listener.serves(a="10.0.0.1")
        assert followed.state().problems == ()


@pytest.mark.parametrize("text", ["", "# nothing", endpoint_slice("a", "10.1.0.1")], ids=["empty", "comment", "other"])
async def test_a_file_that_loses_all_services_keeps_them_for_some_seconds(
    directory: Path, monkeypatch: pytest.MonkeyPatch, text: str
) -> None:
    """An editor, or a copy, may truncate it first."""
    monkeypatch.setattr(source, "UNWATCHED_POLL_S", 0.05)
    path = directory / "a.yaml"
    path.write_text(join(service("a"), service("b")))
    async with following(directory) as (listener, _):
        path.write_text(text)
        await listener.until(lambda: listener.reported("has lost all Services") == 1)
        assert listener.addresses == {"a": "10.0.0.1", "b": "10.0.0.1"}
        path.write_text(join(service("a", "10.0.0.2"), service("b")))
        await listener.serves(a="10.0.0.2", b="10.0.0.1")
        await listener.until(lambda: listener.reported("has lost all Services", resolved=True) == 1)
        assert "remove a" not in listener.calls
        monkeypatch.setattr(reader, "EMPTIED_S", 0.2)
        path.write_text(text)
        await listener.serves()
        await listener.until(lambda: listener.reported("has lost all Services", resolved=True) == 2)


async def test_a_pattern(directory: Path) -> None:
    (directory / "app-a.yaml").write_text(service("a"))
    (directory / "other.yaml").write_text(service("o"))
    async with following(directory / "app-*.yaml") as (listener, followed):
        await listener.serves(a="10.0.0.1")
        (directory / "app-b.yaml").write_text(service("b"))
        await listener.serves(a="10.0.0.1", b="10.0.0.1")
        (directory / "app-a.yaml").unlink()
        await listener.serves(b="10.0.0.1")
        assert followed.state().paths[0].manifests == 1
        (directory / "app-b.yaml").unlink()  # what no longer matches anything takes nothing away
        await listener.until(lambda: listener.reported("no such file or directory") == 1)
        assert listener.addresses == {"b": "10.0.0.1"}


async def test_a_file_replaced_by_rename(directory: Path) -> None:
    path = directory / "services"
    path.write_text(service("a"))
    async with following(path) as (listener, _):
        for number in range(2, 5):
            (directory / ".services.tmp").write_text(service("a", f"10.0.0.{number}"))
            os.replace(directory / ".services.tmp", path)
            await listener.serves(a=f"10.0.0.{number}")
        assert listener.reports == []


async def test_a_config_map_volume(directory: Path) -> None:
    """As the kubelet writes it: the files are links through ``..data``, which is replaced as a whole."""

    def version(name: str, text: str) -> None:
        (directory / name).mkdir()
        (directory / name / "services.yaml").write_text(text)
        (directory / "..data_tmp").symlink_to(name)
        os.replace(directory / "..data_tmp", directory / "..data")

    version("..2024_1", service("a"))
    (directory / "services.yaml").symlink_to("..data/services.yaml")
    async with following(directory) as (by_directory, _), following(directory / "services.yaml") as (by_file, _):
        for listener in (by_directory, by_file):
            await listener.serves(a="10.0.0.1")
        version("..2024_2", join(service("a", "10.0.0.2"), service("b")))
        shutil.rmtree(directory / "..2024_1")
        for listener in (by_directory, by_file):
            await listener.serves(a="10.0.0.2", b="10.0.0.1")
            assert "remove a" not in listener.calls
            assert listener.reports == []


async def test_an_editor_that_moves_the_old_file_away(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(service("a"))
    async with following(directory) as (listener, _):
        (directory / ".a.yaml.swp").write_bytes(b"b0VIM 9.0\x00")
        os.rename(path, directory / "a.yaml~")
        with path.open("w") as file:
            for line in service("a", "10.0.0.2").splitlines(keepends=True):
                file.write(line)
                file.flush()
                await asyncio.sleep(0.02)
        (directory / "a.yaml~").unlink()
        await listener.serves(a="10.0.0.2")
        assert listener.calls[2:] == ["put a"]
        assert listener.reports == []


async def test_a_file_under_another_name(directory: Path) -> None:
    (directory / "a.yaml").write_text(service("a"))
    async with following(directory) as (listener, followed):
        os.rename(directory / "a.yaml", directory / "b.yaml")
        (directory / "c.yaml").write_text(service("c"))
        await listener.until(lambda: followed.state().paths[0].manifests == 2 and len(listener.services) == 2)
        assert listener.calls[2:] == ["put c"]
        assert listener.reports == []


async def test_a_directory_that_disappears_and_returns(directory: Path) -> None:
    (directory / "a.yaml").write_text(service("a"))
    (directory / "b.yaml").write_text(service("b"))
    async with following(directory) as (listener, followed):
        elsewhere = directory.with_name("elsewhere")
        os.rename(directory, elsewhere)
        await listener.until(lambda: listener.reported("no such file or directory; its last good version") == 1)
        assert followed.state().paths[0].fault == "no such file or directory"
        directory.mkdir()
        await listener.until(lambda: listener.reported("replaced by an empty directory") == 1)
        assert listener.addresses == {"a": "10.0.0.1", "b": "10.0.0.1"}
        directory.rmdir()
        (elsewhere / "a.yaml").unlink()
        (elsewhere / "b.yaml").write_text(service("b", "10.0.0.2"))
        os.rename(elsewhere, directory)
        await listener.serves(b="10.0.0.2")
        assert followed.state().problems == ()
        (directory / "c.yaml").write_text(service("c"))
        await listener.serves(b="10.0.0.2", c="10.0.0.1")


async def test_paths_that_are_missing_at_first(tmp_path: Path) -> None:
    directory, file = tmp_path / "directory", tmp_path / "file.yaml"
    async with following(directory, file) as (listener, followed):
        assert listener.calls == ["replace slices", "replace services"]
        assert len(followed.state().problems) == 2
        file.write_text(service("b"))
        await listener.serves(b="10.0.0.1")
        directory.mkdir()
        (directory / "a.yaml").write_text(service("a"))
        await listener.serves(a="10.0.0.1", b="10.0.0.1")
        assert followed.state().problems == ()
        assert listener.reported("no such file", resolved=True) == 2


async def test_a_deleted_named_file_stays_served(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(service("a"))
    async with following(path) as (listener, _):
        path.unlink()
        await listener.until(lambda: listener.reported("its last good version stays served") == 1)
        assert listener.addresses == {"a": "10.0.0.1"}
        path.write_text(service("a", "10.0.0.2"))
        await listener.serves(a="10.0.0.2")


async def test_a_fault_is_reported_once_and_its_end_once(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(service("a"))
    async with following(directory) as (listener, followed):
        path.write_text(join(service("a", port="http"), service("b")))
        await listener.serves(a="10.0.0.1", b="10.0.0.1")
        path.write_text(join("# moved\n", service("b", "10.0.0.2"), service("a", port="http")))
        await listener.serves(a="10.0.0.1", b="10.0.0.2")
        assert listener.reported("a.yaml document 1: spec.ports[0].port: 'http'") == len(listener.reports) == 1
        assert followed.state().problems[0].document == 2
        path.write_text(service("a", "10.0.0.3"))
        await listener.serves(a="10.0.0.3")
        assert listener.reported("'http'", resolved=True) == 1


async def test_two_files_with_the_same_object(directory: Path) -> None:
    (directory / "a.yaml").write_text(service("a"))
    (directory / "b.yaml").write_text(service("a", "10.0.0.2"))
    async with following(directory) as (listener, _):
        assert listener.addresses == {"a": "10.0.0.1"}
        fault = f"b.yaml document 1: metadata.name: Service default/a is already defined in {directory}/a.yaml"
        assert listener.reported(fault) == 1
        (directory / "a.yaml").unlink()
        await listener.serves(a="10.0.0.2")
        assert "remove a" not in listener.calls


async def test_subdirectories_are_followed_recursively(directory: Path) -> None:
    (directory / "one" / "two").mkdir(parents=True)
    (directory / "one" / "two" / "a.yaml").write_text(service("a"))
    async with following(directory, recursive=True) as (listener, _):
        await listener.serves(a="10.0.0.1")
        (directory / "three").mkdir()
        (directory / "three" / "b.yaml").write_text(service("b"))
        await listener.serves(a="10.0.0.1", b="10.0.0.1")
        shutil.rmtree(directory / "one")
        await listener.serves(b="10.0.0.1")


async def test_a_file_that_becomes_unreadable(directory: Path) -> None:
    """A directory in its place represents any reason; root may read every file."""
    path = directory / "a.yaml"
    path.write_text(service("a"))
    async with following(path) as (listener, followed):
        os.rename(path, directory / "aside")
        os.mkfifo(path)
        await listener.until(lambda: listener.reported("neither a file nor a directory; its last good version") == 1)
        assert listener.addresses == {"a": "10.0.0.1"}
        os.rename(directory / "aside", path)
        await listener.until(lambda: followed.state().problems == ())


async def test_an_enforced_namespace(directory: Path) -> None:
    (directory / "a.yaml").write_text(join(service("a"), service("b", namespace="other")))
    async with following(directory, enforced="mine") as (listener, _):
        assert list(listener.services) == [ServiceName("mine", "a")]
        assert listener.reported("document 2: metadata.namespace: 'other'; allowed: only 'mine'") == 1


async def test_reload_reads_files_with_an_unchanged_signature(directory: Path) -> None:
    path = directory / "a.yaml"
    path.write_text(service("a", "10.0.0.1"))
    status = path.stat()
    async with following(directory) as (listener, followed):
        with path.open("r+") as file:
            file.write(service("a", "10.0.0.2"))
            file.flush()
            os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
        await followed.reload()
        assert listener.addresses == {"a": "10.0.0.2"}


async def run_until_loaded(followed: ManifestSource, listener: Listener) -> None:
    """Run the source until it has loaded, then cancel it as a failure does."""
    calls = len(listener.calls)
    task = asyncio.create_task(followed.run())
    await listener.until(lambda: "replace services" in listener.calls[calls:])
    task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await task


async def test_a_second_run_withdraws_nothing(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """After any failure of the earlier run: its readings may be lost or delivered."""
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(service("stdin").encode())))
    (directory / "a.yaml").write_text(service("a"))
    async with following(directory, "-") as (listener, followed):
        assert listener.addresses == {"a": "10.0.0.1", "stdin": "10.0.0.1"}
    await run_until_loaded(followed, listener)
    assert listener.addresses == {"a": "10.0.0.1", "stdin": "10.0.0.1"}
    (directory / "a.yaml").write_text(service("a", "10.0.0.2"))
    await run_until_loaded(followed, listener)
    assert listener.addresses == {"a": "10.0.0.2", "stdin": "10.0.0.1"}


async def test_a_run_after_a_failed_first_run_starts_again(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (directory / "a.yaml").write_text(service("a"))
    listener = Listener()
    followed = ManifestSource(
        paths=[str(directory)],
        recursive=False,
        terms=Terms(),
        sink=listener,
        on_report=listener.reports.append,
    )
    with monkeypatch.context() as patched:
        patched.setattr(reader, "directories", lambda paths: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            await followed.run()
    assert listener.calls == []
    await run_until_loaded(followed, listener)
    assert listener.addresses == {"a": "10.0.0.1"}


async def test_a_lack_of_memory_is_reported_and_retried(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise MemoryError

    monkeypatch.setattr(source, "POLL_S", 0.05)
    (directory / "a.yaml").write_text(service("a"))
    async with following(directory) as (listener, _):
        with monkeypatch.context() as patched:
            patched.setattr(reader, "read", refuse)
            (directory / "a.yaml").write_text(service("a", "10.0.0.2"))
            await listener.until(
                lambda: listener.reported("not enough memory to read it; its last good version stays") == 1
            )
            assert listener.addresses == {"a": "10.0.0.1"}
        await listener.serves(a="10.0.0.2")
        await listener.until(lambda: listener.reported("not enough memory", resolved=True) == 1)


async def test_a_lack_of_threads_is_retried(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    refused = 0

    async def refuse(work: object) -> None:
        nonlocal refused
        refused += 1
        raise ThreadNotStartedError("can't start new thread")

    monkeypatch.setattr(source, "UNWATCHED_POLL_S", 0.05)
    monkeypatch.setattr(source, "POLL_S", 60.0)
    (directory / "a.yaml").write_text(service("a"))
    async with following(directory) as (listener, _):
        with monkeypatch.context() as patched:
            patched.setattr(source, "in_thread", refuse)
            (directory / "a.yaml").write_text(service("a", "10.0.0.2"))
            await listener.until(lambda: refused >= 2)
            assert listener.addresses == {"a": "10.0.0.1"}
        await listener.serves(a="10.0.0.2")


async def test_files_are_polled_if_nothing_can_be_watched(directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*paths: str, **options: object) -> None:
        raise OSError("OS file watch limit reached")

    monkeypatch.setattr("watchfiles.awatch", refuse)
    monkeypatch.setattr(source, "UNWATCHED_POLL_S", 0.05)
    (directory / "a.yaml").write_text(service("a"))
    async with following(directory) as (listener, _):
        (directory / "a.yaml").write_text(service("a", "10.0.0.2"))
        await listener.serves(a="10.0.0.2")


async def test_linked_files_are_polled(tmp_path: Path, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Links into another directory; the watched one does not report its changes."""
    monkeypatch.setattr(source, "POLL_S", 0.05)
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "a").write_text(service("a"))
    (directory / "a.yaml").symlink_to(tmp_path / "elsewhere" / "a")
    async with following(directory) as (listener, _):
        (tmp_path / "elsewhere" / "a").write_text(service("a", "10.0.0.2"))
        await listener.serves(a="10.0.0.2")


async def test_standard_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(join(service("a"), "x: [").encode())))
    async with following("-") as (listener, followed):
        assert listener.addresses == {"a": "10.0.0.1"}
        assert listener.reported("standard input document 2: line 9") == 1
        assert followed.state().paths[0].path == "standard input"
        await followed.reload()
        assert listener.addresses == {"a": "10.0.0.1"}


async def test_a_url_is_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "URL_POLL_S", 0.02)
    answers: list[web.Response] = []
    asked = 0

    async def handle(request: web.BaseRequest) -> web.StreamResponse:
        nonlocal asked
        asked += 1
        if request.headers.get("If-None-Match") == answers[0].headers.get("ETag", "none"):
            return web.Response(status=304)
        answer = answers[0]
        return web.Response(body=answer.body, status=answer.status, headers=answer.headers)

    def page(text: str, **more: object) -> None:
        answers[:] = [web.Response(text=text, **more)]  # type: ignore[arg-type]

    runner = web.ServerRunner(web.Server(handle))
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    try:
        page(service("a"), headers={"ETag": '"1"'})
        async with following(f"http://127.0.0.1:{runner.addresses[0][1]}/x") as (listener, followed):
            await listener.serves(a="10.0.0.1")
            before = asked
            await listener.until(lambda: asked > before + 3)
            assert listener.calls == ["replace slices", "replace services"]
            page(service("a", "10.0.0.2"), headers={"ETag": '"2"'})
            await listener.serves(a="10.0.0.2")
            page("<html>gateway</html>", content_type="text/html")
            await listener.until(lambda: listener.reported("the server answered HTML") == 1)
            page("gone", status=500)
            await listener.until(lambda: listener.reported("the server answered 500") == 1)
            assert listener.addresses == {"a": "10.0.0.2"}
            assert followed.state().paths[0].fault == "the server answered 500 Internal Server Error"
            page("# nothing any more\n")
            await listener.serves()
            assert followed.state().problems == ()
            page(service("b"))
            await followed.reload()
            assert listener.addresses == {"b": "10.0.0.1"}
    finally:
        await runner.cleanup()


async def test_a_manifest_of_twenty_megabytes(directory: Path) -> None:
    """A list, large by its annotations. Other tasks run during the reading."""
    text = json.dumps(
        {
            "apiVersion": "v1",
            "kind": "List",
            "items": [
                {
                    "apiVersion": "v1",
                    "kind": "Service",
                    "metadata": {"name": f"s{number}", "annotations": {"note": "x" * 20_000}},
                    "spec": {"clusterIP": f"10.0.{number // 250}.{number % 250 + 1}", "ports": [{"port": 80}]},
                }
                for number in range(1000)
            ],
        }
    )
    assert len(text) > 20_000_000
    (directory / "large.json").write_text(text)
    async with counted_turns() as turns, following(directory) as (listener, _):
        assert len(listener.services) == 1000
        assert turns.count > 10
        (directory / "large.json").write_text(text.replace('"10.0.3.250"', '"10.9.9.9"'))
        await listener.until(lambda: listener.addresses["s999"] == "10.9.9.9")
        assert listener.calls[2:] == ["put s999"]


def test_check(directory: Path) -> None:
    (directory / "a.yaml").write_text(join(service("a"), "apiVersion: v1\nkind: ConfigMap\n", service("b", port=0)))
    (directory / "b.yaml").write_text(join(service("a"), "x: [\n"))
    (directory / "c.yaml").write_text(service("c"))
    missing = directory / "missing"
    assert list(check([str(directory), str(missing)]).faults) == [
        f"{missing}: no such file or directory",
        f"{directory}/a.yaml:18: error: Service default/b: spec.ports[0].port: 0; allowed: 1 to 65535",
        f"{directory}/b.yaml:9: error: did not find expected node content",
        f"{directory}/b.yaml:3: error: Service default/a: metadata.name: Service default/a is already defined in"
        f" {directory}/a.yaml document 1, which is served",
    ]
    good = check([str(directory / "c.yaml")])
    assert (good.faults, good.manifests, good.services + good.slices) == ((), 1, 1)
    assert check([str(directory / "c.yaml")], terms=Terms("x", "y")).faults == ()
    assert check(["http://127.0.0.1:1/"]).faults[0].startswith("http://127.0.0.1:1/: Cannot connect")
