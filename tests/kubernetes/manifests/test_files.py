"""Listing of manifest files, and detection of complete changes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubeproxy.kubernetes.manifests import files
from kubeproxy.kubernetes.manifests.files import Identity, Listing, PathMemory, ReadError, Signature, look, read_file

HERE = Identity(1, 1)


def sign(version: int, *, size: int = 10, inode: int | None = None) -> Signature:
    return Signature(1, version if inode is None else inode, size, version)


def listing(directory: Identity | None = HERE, **versions: int) -> Listing:
    return Listing(files={f"/d/{name}": sign(version) for name, version in versions.items()}, directory=directory)


class Looker:
    """A memory of ``/d`` that marks read files as loaded."""

    def __init__(self, first: Listing) -> None:
        self.memory = PathMemory("/d")
        self.now = 100.0
        self.faults: dict[str, str] = {}
        assert sorted(self.look(first)[0]) == sorted(first.files)

    def look(self, seen: Listing, *, after: float = 0.0) -> tuple[list[str], list[str]]:
        self.now += after * 1.01  # a little more, for the sums of floats
        changed, gone, self.faults = self.memory.compare(seen, self.now)
        for path in changed:
            self.memory.loaded(path, seen.files[path])
        return changed, gone


def test_the_first_look_reads_everything_at_once() -> None:
    looker = Looker(listing(a=1, b=1))
    assert looker.look(listing(a=1, b=1)) == ([], [])
    assert not looker.memory.settling


def test_a_change_is_read_once_it_is_stable() -> None:
    looker = Looker(listing(a=1))
    assert looker.look(listing(a=2)) == ([], [])
    assert looker.memory.settling
    assert looker.look(listing(a=3), after=files.SETTLE_S) == ([], [])
    assert looker.look(listing(a=3), after=files.SETTLE_S) == (["/d/a"], [])
    assert not looker.memory.settling


@pytest.mark.parametrize(
    ("inode", "at_most_s"), [(7, files.SETTLE_AT_MOST_S), (None, files.REPLACED_AT_MOST_S)], ids=["written", "replaced"]
)
def test_a_file_that_keeps_changing_is_read_after_a_limit(inode: int | None, at_most_s: float) -> None:
    looker = Looker(listing(a=1))
    version, read = 1, False
    while not read:
        version += 1
        changing = Listing(files={"/d/a": sign(version, inode=inode)}, directory=HERE)
        read = looker.look(changing, after=files.SETTLE_S / 2)[0] == ["/d/a"]
        assert version < 2 * at_most_s / files.SETTLE_S + 5
    assert version > at_most_s / files.SETTLE_S


def test_a_reverted_change_is_not_read() -> None:
    looker = Looker(listing(a=1))
    looker.look(listing(a=2))
    assert looker.look(listing(a=1), after=files.SETTLE_S) == ([], [])
    assert not looker.memory.settling


def test_an_editor_that_moves_the_old_file_away_first() -> None:
    looker = Looker(listing(a=1))
    assert looker.look(listing()) == ([], [])
    assert looker.look(listing(a=2), after=files.SETTLE_S) == ([], [])
    assert looker.look(listing(a=2), after=files.SETTLE_S) == (["/d/a"], [])


def test_an_editor_that_truncates_the_old_file_first() -> None:
    looker = Looker(listing(a=1))
    cut = Listing(files={"/d/a": sign(2, size=0)}, directory=HERE)
    assert looker.look(cut) == ([], [])
    assert looker.look(cut, after=files.SETTLE_S) == ([], [])
    assert looker.look(cut, after=files.SETTLE_GONE_S) == (["/d/a"], [])


def test_a_deletion_counts_once_it_is_stable() -> None:
    looker = Looker(listing(a=1, b=1))
    assert looker.look(listing(a=1)) == ([], [])
    assert looker.look(listing(a=1), after=files.SETTLE_GONE_S) == ([], ["/d/b"])
    assert looker.look(listing(a=1), after=1.0) == ([], [])


def test_a_renamed_file_is_replaced_at_once() -> None:
    looker = Looker(listing(a=1))
    assert looker.look(listing(b=1)) == ([], [])
    assert looker.look(listing(b=1), after=files.SETTLE_S) == ([], [])
    assert looker.look(listing(b=1), after=files.SETTLE_GONE_S) == (["/d/b"], ["/d/a"])


@pytest.mark.parametrize(
    ("lost", "fault"),
    [
        (Listing(faults={"/d": "no such file or directory"}), "no such file or directory"),
        (Listing(faults={"/d": "input/output error"}, directory=Identity(9, 9)), "input/output error"),
        (listing(Identity(9, 9)), "replaced by an empty directory"),
    ],
)
def test_a_missing_directory_withdraws_nothing(lost: Listing, fault: str) -> None:
    looker = Looker(listing(a=1, b=1))
    for _ in range(5):
        assert looker.look(lost, after=10.0) == ([], [])
        assert looker.faults == {"/d": fault}
    looker.look(listing(Identity(2, 2), a=1), after=10.0)
    assert looker.look(listing(Identity(2, 2), a=1), after=1.0) == ([], ["/d/b"])
    assert looker.faults == {}


def test_an_emptied_directory_withdraws_its_objects() -> None:
    looker = Looker(listing(a=1))
    looker.look(listing())
    assert looker.look(listing(), after=1.0) == ([], ["/d/a"])


def test_an_unreadable_subdirectory_withdraws_nothing() -> None:
    looker = Looker(Listing(files={"/d/s/a": sign(1), "/d/sb": sign(1)}, directory=HERE))
    unreadable = Listing(files={}, faults={"/d/s": "permission denied"}, directory=HERE)
    looker.look(unreadable)
    assert looker.look(unreadable, after=1.0) == ([], ["/d/sb"])


def test_forgetting_reads_everything_at_once() -> None:
    looker = Looker(listing(a=1, b=1))
    looker.memory.forget()
    assert looker.look(listing(a=1, b=1)) == (["/d/a", "/d/b"], [])


# Real files


def test_manifest_suffixes_and_hidden_files(tmp_path: Path) -> None:
    for name in (
        "b.yaml", "a.yml", "c.json", ".hidden.yaml", "d.yaml~", ".d.yaml.swp", "e.txt", "README", "#f.yaml#", "4913",
        "sub/g.yaml", ".git/h.yaml", "sub/deep/i.json",
    ):  # fmt: skip
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (tmp_path / "sub" / "circle").symlink_to(tmp_path)
    (tmp_path / "dangling.yaml").symlink_to(tmp_path / "nowhere")
    os.mkfifo(tmp_path / "pipe.yaml")

    def names(*, recursive: bool) -> list[str]:
        seen = look(str(tmp_path), recursive=recursive)
        assert seen.faults == {}
        return [os.path.relpath(path, tmp_path) for path in seen.files]

    assert names(recursive=False) == ["a.yml", "b.yaml", "c.json"]
    assert names(recursive=True) == ["a.yml", "b.yaml", "c.json", "sub/g.yaml", "sub/deep/i.json"]


def test_a_named_file_may_have_any_name(tmp_path: Path) -> None:
    path = tmp_path / ".services"
    path.write_text("x")
    assert list(look(str(path), recursive=False).files) == [str(path)]


def test_other_than_regular_files_are_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert look(str(tmp_path / "pipe"), recursive=False).faults == {
        str(tmp_path / "pipe"): "neither a file nor a directory"
    }
    with pytest.raises(ReadError, match="not a regular file"):
        read_file(str(tmp_path / "pipe"))


def test_a_too_large_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "large.yaml"
    with path.open("wb") as file:
        file.truncate(files.MAX_BYTES + 1)
    with pytest.raises(ReadError, match="allowed: up to"):
        read_file(str(path))


def test_a_pattern_is_the_files_that_match(tmp_path: Path) -> None:
    for name in ("app-2.yaml", "app-1.yaml", "other.yaml"):
        (tmp_path / name).write_text("")
    (tmp_path / "app-dir.yaml").mkdir()
    pattern = str(tmp_path / "app-*.yaml")
    listing = look(pattern, recursive=False)
    assert [os.path.basename(path) for path in listing.files] == ["app-1.yaml", "app-2.yaml"]
    (tmp_path / "app-1.yaml").unlink()
    (tmp_path / "app-2.yaml").unlink()
    assert look(pattern, recursive=False).faults == {pattern: "no such file or directory"}
