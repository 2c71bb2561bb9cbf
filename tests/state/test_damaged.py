"""A damaged state folder is set aside and said; any other folder that cannot be used is refused and left alone."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.core.errors import FormatError, StateFolderError, StateInUseError
from tailrace.state import RocksStore, StateIdentity, StateMemory
from tailrace.state.damaged import SUFFIX, open_or_set_aside
from tailrace.state.folder import DATABASE, LABEL

OURS = StateIdentity("flights", 0)
MEMORY = StateMemory(8 << 20)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    filled(tmp_path / "0", b"row")
    return tmp_path / "0"


def filled(folder: Path, row: bytes, identity: StateIdentity = OURS) -> None:
    store = RocksStore(folder, identity, MEMORY)
    store.write({row: b"value"}, b"cut")
    store.close()


def without_current(folder: Path) -> None:
    (folder / DATABASE / "CURRENT").unlink()


def with_half_a_label(folder: Path) -> None:
    data = (folder / LABEL).read_bytes()
    (folder / LABEL).write_bytes(data[: len(data) // 2])


def with_a_damaged_manifest(folder: Path) -> None:
    (path,) = (folder / DATABASE).glob("MANIFEST-*")
    data = bytearray(path.read_bytes())
    data[20] ^= 1
    path.write_bytes(data)


def without_its_rows(folder: Path) -> None:
    for path in (folder / DATABASE).glob("*.sst"):
        path.unlink()


@pytest.mark.parametrize(
    "damage", [without_current, with_half_a_label, with_a_damaged_manifest, without_its_rows]
)
def test_a_damaged_folder_is_kept_aside_and_an_empty_store_is_opened(
    folder: Path, damage: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    damage(folder)
    damaged = {path.name for path in (folder / DATABASE).iterdir()}
    with caplog.at_level(logging.WARNING):
        store = open_or_set_aside(folder, OURS, MEMORY)
    assert store.cut is None
    assert list(store.rows()) == []
    store.close()
    aside = folder.with_name(f"0{SUFFIX}")
    assert {path.name for path in (aside / DATABASE).iterdir()} >= damaged - {"LOG"}
    (said,) = caplog.messages
    assert str(aside) in said
    assert "restored from the log" in said


def test_of_several_damaged_folders_the_last_is_kept(folder: Path) -> None:
    without_current(folder)
    open_or_set_aside(folder, OURS, MEMORY).close()
    with_half_a_label(folder)
    open_or_set_aside(folder, OURS, MEMORY).close()
    aside = folder.with_name(f"0{SUFFIX}")
    assert (aside / DATABASE / "CURRENT").exists()
    assert sorted(path.name for path in folder.parent.iterdir()) == ["0", f"0{SUFFIX}"]


def test_a_folder_that_is_whole_is_opened_as_it_is(folder: Path) -> None:
    store = open_or_set_aside(folder, OURS, MEMORY)
    assert (store.cut, store.get(b"row")) == (b"cut", b"value")
    store.close()
    assert list(folder.parent.iterdir()) == [folder]


def test_a_folder_of_another_task_or_version_or_in_use_is_left_alone(folder: Path) -> None:
    with pytest.raises(StateFolderError, match="folder of its own"):
        open_or_set_aside(folder, StateIdentity("flights", 1), MEMORY)
    held = RocksStore(folder, OURS, MEMORY)
    with pytest.raises(StateInUseError):
        open_or_set_aside(folder, OURS, MEMORY)
    held.close()
    (folder / LABEL).write_text('{"format": 99}')
    with pytest.raises(FormatError):
        open_or_set_aside(folder, OURS, MEMORY)
    assert list(folder.parent.iterdir()) == [folder]
