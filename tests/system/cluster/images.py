"""The images of the cluster: their names, the project's own, and stand-ins for those of the e2e tests.

Nodes reach no registry: each imports the archives in the directory `images` of KUBERNETES_BINARIES. Where a registry
can be reached, docs/conformance.md fetches the true ones; elsewhere `python -m tests.system.cluster.images` makes some
under the same names, from the program agnhost and from Debian.
"""

from __future__ import annotations

import hashlib
import io
import json
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from kubeproxy.model.version import __version__
from tests.system.cluster.node import ROOT
from tests.system.cluster.programs import Programs, found


@dataclass(frozen=True, slots=True)
class Versions:
    """The image that is installed, another one, and one that speaks another version of the takeover protocol."""

    current: str
    other: str
    foreign: str


VERSIONS: Final = Versions(__version__, f"{__version__}.post1", f"{__version__}.post2")
REPOSITORY: Final = "registry.example.com/kubeproxy"
USED: Final = ("agnhost", "busybox", "distroless-iptables", "nginx", "pause", "regression-issue-74839")
"""Images that the selected e2e tests pull."""
PACKAGES: Final = (
    *("bash", "busybox-static", "ca-certificates", "conntrack", "curl", "dnsutils", "ipset", "iptables"),
    *("iputils-ping", "iproute2", "netcat-openbsd", "nftables", "nginx-light", "procps", "util-linux"),
)
"""What tests call in a container of agnhost."""
PAUSE_SOURCE: Final = """\
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>
static void end(int signal) { (void)signal; _exit(0); }
static void reap(int signal) { (void)signal; while (waitpid(-1, 0, WNOHANG) > 0); }
int main(void) {
  signal(SIGINT, end); signal(SIGTERM, end); signal(SIGCHLD, reap);
  for (;;) pause();
}
"""
WGET: Final = """\
#!/bin/sh
# Tests call `wget -q -O - -T 1 URL`, as of Alpine.
for url; do :; done
exec curl -q -s -S -f --connect-timeout 1 --max-time 5 "$url"
"""


def listed(programs: Programs) -> tuple[str, ...]:
    """The names of all images of e2e.test, by its own account."""
    done = subprocess.run([programs["e2e.test"], "--list-images"], capture_output=True, text=True, check=True)
    return tuple(line.strip() for line in done.stdout.splitlines() if "/" in line)


def names_of(image: str, names: Sequence[str]) -> tuple[str, ...]:
    """Those of `names` that are a version of `image`."""
    return tuple(name for name in names if name.rpartition(":")[0].rpartition("/")[2] == image)


def name_of(image: str, programs: Programs) -> str:
    """The newest name that e2e.test has for an image."""
    return max(names_of(image, listed(programs)))


def make_ours(version: str, directory: Path, storage: Path) -> Path:
    """Build the project's image by `make image` and return its archive.

    A version that is not the tree's is built from a copy in which only the version is another, and that of the takeover
    protocol if it is the foreign one.
    """
    archive = directory / f"kubeproxy-{version}.tar"
    tree = directory / f"tree-{version}"
    shutil.rmtree(tree, ignore_errors=True)
    listed_files = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    for name in filter(None, listed_files.split("\0")):
        if not name.startswith("tests/"):
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name, follow_symlinks=False)
    (tree / "kubeproxy/model/version.py").write_text(f'"""The version."""\n\n__version__ = "{version}"\n')
    if version == VERSIONS.foreign:
        messages = tree / "kubeproxy/dataplane/workers/takeover_messages.py"
        changed, count = re.subn(r"^PROTOCOL: Final = \d+$", "PROTOCOL: Final = 999", messages.read_text(), flags=re.M)
        assert count == 1, f"{messages} has no version of the protocol"
        messages.write_text(changed)
    archive.unlink(missing_ok=True)
    environment = [f"STORAGE={storage}", f"OUTPUT={archive}"]
    command = ["env", *environment, "make", "image", f"TAG={REPOSITORY}:{version}"]
    done = subprocess.run(command, cwd=tree, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    shutil.rmtree(tree)
    return archive


def make_stand_ins(programs: Programs, work: Path) -> None:
    """Make the archives of `USED`: from Debian, and from the two test programs in KUBERNETES_BINARIES."""
    names = listed(programs)
    target = programs.directory / "images"
    target.mkdir(exist_ok=True)
    work.mkdir(parents=True, exist_ok=True)
    agnhost = _agnhost_root(programs, work / "agnhost")
    agnhost_names = names_of("agnhost", names) + names_of("distroless-iptables", names)
    write_archive(target / "agnhost.tar", agnhost, {"Entrypoint": ["/agnhost"], "Cmd": ["pause"]}, agnhost_names)
    nginx = {"Cmd": ["nginx", "-g", "daemon off;"]}
    write_archive(target / "nginx.tar", agnhost, nginx, names_of("nginx", names))
    busybox = _busybox_root(agnhost, work / "busybox")
    write_archive(target / "busybox.tar", busybox, {"Cmd": ["sh"]}, names_of("busybox", names))
    pause = {"Entrypoint": ["/pause"], "User": "65535:65535"}
    write_archive(target / "pause.tar", _pause_root(work / "pause"), pause, names_of("pause", names))
    regression = work / "regression"
    regression.mkdir(exist_ok=True)
    shutil.copy2(programs["regression-issue-74839"], regression)
    config = {"Entrypoint": ["/regression-issue-74839"]}
    write_archive(target / "regression.tar", regression, config, names_of("regression-issue-74839", names))


def write_archive(archive: Path, root: Path, config: Mapping[str, Any], names: Sequence[str]) -> None:
    """Write an archive with one layer, the directory `root`, for `ctr images import`."""
    layer = archive.with_suffix(".layer")
    with tarfile.open(layer, "w") as tar:
        tar.add(root, ".", filter=lambda it: None if it.ischr() or it.isblk() else it)
    with layer.open("rb") as bytes_of_layer:
        digest = hashlib.file_digest(bytes_of_layer, "sha256").hexdigest()
    path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
    image = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": [path], **config},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]},
    }
    text = json.dumps(image).encode()
    config_name = f"{hashlib.sha256(text).hexdigest()}.json"
    manifest = [{"Config": config_name, "RepoTags": list(names), "Layers": [f"{digest}/layer.tar"]}]
    with tarfile.open(archive, "w") as tar:
        for name, data in ((config_name, text), ("manifest.json", json.dumps(manifest).encode())):
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            tar.addfile(entry, io.BytesIO(data))
        tar.add(layer, f"{digest}/layer.tar")
    layer.unlink()


def _agnhost_root(programs: Programs, root: Path) -> Path:
    if not (root / "bin/bash").exists():
        include = f"--include={','.join(PACKAGES)}"
        command = ["mmdebstrap", "--variant=minbase", include, "bookworm", str(root)]
        subprocess.run(command, check=True, capture_output=True)
    shutil.copy2(programs["agnhost"], root / "agnhost")
    (root / "agnhost-2").unlink(missing_ok=True)
    (root / "agnhost-2").symlink_to("agnhost")
    (root / "uploads").mkdir(exist_ok=True)
    # `agnhost porter` serves HTTPS with these.
    request = "req -x509 -newkey rsa:2048 -nodes -days 365 -subj /CN=localhost -keyout localhost.key -out localhost.crt"
    subprocess.run(["openssl", *request.split()], cwd=root, check=True, capture_output=True)
    wget = root / "usr/bin/wget"
    wget.unlink(missing_ok=True)
    wget.write_text(WGET)
    wget.chmod(0o755)
    return root


def _busybox_root(agnhost: Path, root: Path) -> Path:
    for name in ("bin", "sbin", "usr/bin", "usr/sbin", "etc", "tmp", "root"):
        (root / name).mkdir(parents=True, exist_ok=True)
    shutil.copy2(agnhost / "bin/busybox", root / "bin/busybox")
    subprocess.run(["chroot", str(root), "/bin/busybox", "--install", "-s"], check=True)
    (root / "etc/passwd").write_text("root:x:0:0::/root:/bin/sh\n")
    return root


def _pause_root(root: Path) -> Path:
    root.mkdir(parents=True, exist_ok=True)
    source = root.with_suffix(".c")
    source.write_text(PAUSE_SOURCE)
    subprocess.run(["gcc", "-Os", "-static", "-o", str(root / "pause"), str(source)], check=True)
    return root


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        make_stand_ins(found(), Path(scratch))
