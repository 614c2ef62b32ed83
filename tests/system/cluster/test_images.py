"""Archives of images, and the names that e2e tests have for them."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path

from tests.system.cluster import images

NAMES = (
    *("registry.k8s.io/pause:3.10", "registry.k8s.io/e2e-test-images/agnhost:2.55"),
    *("registry.k8s.io/e2e-test-images/agnhost:2.63.0", "registry.k8s.io/e2e-test-images/busybox:1.37.0-1"),
)


def test_an_image_has_all_names_of_its_versions() -> None:
    assert images.names_of("agnhost", NAMES) == NAMES[1:3]
    assert images.names_of("host", NAMES) == ()


def test_an_archive_is_what_an_import_reads(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "pause").write_text("program")
    archive = tmp_path / "pause.tar"
    images.write_archive(archive, root, {"Entrypoint": ["/pause"]}, NAMES[:1])
    with tarfile.open(archive) as tar:

        def read(name: str) -> bytes:
            file = tar.extractfile(name)
            assert file is not None
            return file.read()

        (manifest,) = json.loads(read("manifest.json"))
        assert manifest["RepoTags"] == [NAMES[0]]
        assert json.loads(read(manifest["Config"]))["config"]["Entrypoint"] == ["/pause"]
        layer = tmp_path / "layer.tar"
        layer.write_bytes(read(manifest["Layers"][0]))
    with tarfile.open(layer) as tar:
        assert "./pause" in tar.getnames()
    assert {it.name for it in tmp_path.iterdir()} == {"root", "pause.tar", "layer.tar"}
