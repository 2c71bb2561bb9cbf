"""The jars of the broker: fetched once, whole or not at all. Maven is a script here, so nothing is downloaded."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.kafka.broker.artefacts import jars
from tests.kafka.broker.errors import NoBrokerError

FETCHES = """
echo fetched >> {log}
for option in "$@"; do
    case $option in -DoutputDirectory=*) folder=${{option#*=}};; esac
done
mkdir "$folder"
touch "$folder/kafka.jar"
"""


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache, and a folder for a program ``mvn``, which is not there yet."""
    (tmp_path / "bin").mkdir()
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}{os.pathsep}{os.defpath}")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return tmp_path / "cache" / "tailrace"


def maven(folder: Path, script: str) -> None:
    program = folder / "bin" / "mvn"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)


def test_several_that_need_the_jars_at_once_fetch_them_once(tmp_path: Path, cache: Path) -> None:
    log = tmp_path / "log"
    maven(tmp_path, FETCHES.format(log=log))
    with ThreadPoolExecutor(4) as pool:
        (folder,) = set(pool.map(lambda _: jars(), range(4)))
    assert [path.name for path in folder.iterdir()] == ["kafka.jar"]
    assert {path for path in cache.iterdir() if path.is_dir()} == {folder}
    assert log.read_text() == "fetched\n"
    (tmp_path / "bin" / "mvn").unlink()
    assert jars() == folder


def test_a_fetch_that_fails_leaves_no_folder_and_is_tried_again(tmp_path: Path, cache: Path) -> None:
    maven(tmp_path, FETCHES.format(log=tmp_path / "log") + "echo no repository answers; exit 3")
    with pytest.raises(NoBrokerError, match=r"(?s)exit code 3.*no repository answers"):
        jars()
    assert not any(path.is_dir() for path in cache.iterdir())
    maven(tmp_path, FETCHES.format(log=tmp_path / "log"))
    assert (jars() / "kafka.jar").exists()


def test_without_maven_and_jars_the_reason_is_given(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path / "bin"))
    with pytest.raises(NoBrokerError, match=r"Maven.*TAILRACE_TEST_KAFKA"):
        jars()
