"""Builds the image of the Dockerfile, and runs containers of it, with buildah and crun alone: no engine, and the network of the host.

A container has a read-only root, no capabilities, and the user of the image. Limits of memory and networks of its own are not
tested: they need an engine.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import signal
import subprocess
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.spark.session import check_java
from tests.docs.page import ROOT

BASE = "localhost/tailrace-base:2"
IMAGE = f"localhost/tailrace-services-test-{os.getpid()}"
SPARK_IMAGE, JDK_IMAGE = (f"localhost/tailrace-{name}-test-{os.getpid()}" for name in ("spark", "jdk"))
USER = 10001
OF_IMAGES = [
    pytest.mark.nightly,
    pytest.mark.skipif(
        os.getuid() != 0,
        reason="an image is built and run without an engine only by root; `.ci/run` counts that as a failure",
    ),
]
"""The marks of tests that build and run images."""
_OF_HOST = ("/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt", os.environ.get("PIP_FIND_LINKS", ""))
"""With what pip is set up here: the build uses it, too."""
_NAMESPACES = {"pid", "mount", "ipc", "uts"}


def tool(*arguments: object) -> str:
    done = subprocess.run([*map(str, arguments)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{' '.join(map(str, arguments))}\n{done.stdout}\n{done.stderr}"
    return done.stdout


def owned(folder: Path) -> Path:
    """A folder of the container's user, as an engine makes a volume."""
    folder.mkdir()
    os.chown(folder, USER, USER)
    return folder


def build(image: str = IMAGE, *options: str, folder: Path = ROOT) -> None:
    """Build an image from what its Dockerfile sees of a folder."""
    mounts = [f"--volume={one}:{one}:ro" for one in _OF_HOST if one.startswith("/") and Path(one).exists()]
    tool(
        "buildah", "build", "--format", "docker", "--isolation", "chroot", "--pull-never",
        *(options or ("--build-arg", f"BASE={BASE}")), *mounts, "--tag", image, folder,
    )  # fmt: skip


def build_spark(folder: Path) -> None:
    """Build the image with Spark. The JDK of this machine stands for that of the registry."""
    home = check_java().resolve().parent.parent
    found = folder / "openjdk"
    shutil.copytree(
        home, found, ignore_dangling_symlinks=True
    )  # links of Debian lead out of it: they are followed
    container = tool("buildah", "from", "scratch").strip()
    tool("buildah", "add", container, found, "/opt/java/openjdk")
    tool("buildah", "commit", "--rm", container, JDK_IMAGE)
    arguments = ("--build-arg", f"IMAGE={IMAGE}", "--build-arg", f"JDK={JDK_IMAGE}")
    build(SPARK_IMAGE, "--file", str(ROOT / "deploy" / "spark" / "Dockerfile"), *arguments)


def settings(image: str = IMAGE) -> dict[str, Any]:
    """What an image says of itself."""
    found = msgspec.json.decode(tool("buildah", "inspect", "--type", "image", image))
    config: dict[str, Any] = found["Docker"]["config"]
    return config


class Container:
    """A process in a container."""

    def __init__(self, name: str, process: subprocess.Popen[str]) -> None:
        self.name, self.process = name, process

    @property
    def has_ended(self) -> bool:
        """Whether its process has ended."""
        return self.process.poll() is not None

    def run(self, *command: str) -> str:
        """The output of a command in the same container."""
        return tool("crun", "exec", self.name, *command)

    def stop(self) -> tuple[int, str]:
        """SIGTERM; returns its exit code and what it has written."""
        tool("crun", "kill", self.name, "TERM")
        return self.ended()

    def ended(self) -> tuple[int, str]:
        """Wait for its end."""
        said, _ = self.process.communicate(timeout=180)
        return self.process.returncode, said


@contextmanager
def root_of_image(image: str = IMAGE) -> Generator[Path]:
    """The file system of an image."""
    container = tool("buildah", "from", "--pull-never", image).strip()
    try:
        yield Path(tool("buildah", "mount", container).strip())
    finally:
        tool("buildah", "umount", container)
        tool("buildah", "rm", container)


@contextmanager
def container(
    root: Path,
    folder: Path,
    arguments: Sequence[object],
    *,
    image: str = IMAGE,
    entrypoint: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    volumes: Mapping[str, Path] | None = None,
) -> Generator[Container]:
    """Run a command of an image. ``volumes``: folders of this machine by their path in the container."""
    said, name = settings(image), f"tailrace-test-{secrets.token_hex(4)}"
    bundle = folder / name
    bundle.mkdir()
    tool("crun", "spec", "--bundle", bundle)
    spec = msgspec.json.decode((bundle / "config.json").read_bytes())
    spec["root"] = {"path": str(root), "readonly": True}
    spec["linux"]["namespaces"] = [one for one in spec["linux"]["namespaces"] if one["type"] in _NAMESPACES]
    spec["process"] |= {
        "terminal": False,
        "args": [*(entrypoint or said["Entrypoint"]), *map(str, arguments)],
        "env": [*said["Env"], *(f"{key}={value}" for key, value in (environment or {}).items())],
        "cwd": said["WorkingDir"],
        "user": dict(zip(("uid", "gid"), map(int, said["User"].split(":")), strict=True)),
        "capabilities": {},
        "noNewPrivileges": True,
    }
    bound = [
        {"destination": at, "type": "bind", "source": str(here), "options": ["rbind", "rw"]}
        for at, here in (volumes or {}).items()
    ]
    hosts = bundle / "hosts"  # as every engine makes it
    hosts.write_text("127.0.0.1 localhost\n")
    bound.append(
        {"destination": "/etc/hosts", "type": "bind", "source": str(hosts), "options": ["rbind", "ro"]}
    )
    tmp = {"destination": "/tmp", "type": "tmpfs", "source": "tmpfs", "options": ["mode=1777"]}
    kept = [one for one in spec["mounts"] if not one["destination"].startswith("/sys")]
    spec["mounts"] = [*kept, tmp, *bound]
    (bundle / "config.json").write_text(json.dumps(spec))
    # crun wants a tree of control groups of its own; the mount is seen by it alone.
    run = f"mount -t cgroup2 none /sys/fs/cgroup && exec crun --cgroup-manager=disabled run --bundle {bundle} {name}"
    process = subprocess.Popen(
        ["unshare", "--mount", "sh", "-c", run],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    try:
        yield Container(name, process)
    finally:
        subprocess.run(["crun", "delete", "--force", name], capture_output=True, check=False)
        if process.poll() is None:
            process.send_signal(signal.SIGKILL)
        process.communicate()
