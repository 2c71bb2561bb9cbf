"""After a power cut at any operation the service starts by itself, and its results are those of the log that is left."""

from __future__ import annotations

import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tailrace.core.errors import TailraceError
from tests.conftest import FIRST_SEED
from tests.power.checks import check
from tests.power.disk import Cut, Recorded
from tests.power.files import COMMITS, DURABLE, POLICIES
from tests.power.real_disk import may_cut
from tests.power.recording import FDATASYNC, FSYNC, MAKE_FOLDER, ROOT

STEP = 20
_SHOWN = 500


class TrialError(AssertionError):
    """Something that must not happen, with what is needed to repeat it."""


def power_cut(made: Recorded, policy: str, cut: Cut, folder: Path) -> None:
    """Check the crash state of a cut.

    Raises:
        TrialError: Something durable was lost, something is torn, the service does not start, or its results are wrong.
    """
    folder.mkdir()
    made.build(cut, folder)
    try:
        promised = made.promised(cut)
        durable = promised if policy == DURABLE else made.synced(cut, COMMITS)
        check(folder, policy, promised, durable)
    except (AssertionError, TailraceError) as error:
        said = str(error)[:_SHOWN]
        raise TrialError(f"policy {policy!r}, {cut}: {type(error).__name__}: {said}") from error
    shutil.rmtree(folder)


@pytest.mark.one_seed_in(STEP)  # one takes 0.4 s
def test_a_power_cut_loses_nothing_durable_and_tears_nothing(
    seeds: range, recording: Callable[[str], Recorded], tmp_path: Path
) -> None:
    for seed in seeds:
        policy = POLICIES[seed // STEP % len(POLICIES)]
        made = recording(policy)
        power_cut(made, policy, made.cut(seed), tmp_path / str(seed))


def test_a_log_that_is_not_synced_is_found_to_lose_commits(
    recording: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """The same recording with the syncs of the log left out, as if the log did not ask for them."""
    whole = recording(DURABLE)
    log = {one.file for one in whole.operations if one.path.startswith("log/")}
    unsynced = [one for one in whole.operations if one.kind not in (FSYNC, FDATASYNC) or one.file not in log]
    assert len(unsynced) < len(whole.operations)
    made = Recorded(unsynced)
    with pytest.raises(TrialError):
        for seed in range(100):
            power_cut(made, DURABLE, made.cut(seed), tmp_path / str(seed))


def test_a_snapshot_whose_folder_is_not_synced_is_found_to_disappear(
    recording: Callable[[str], Recorded], tmp_path: Path
) -> None:
    """The same recording without the syncs of the folder that a manifest is put into."""
    whole = recording(DURABLE)
    folders = {
        one.file for one in whole.operations if one.kind == MAKE_FOLDER and one.path.startswith("snapshots/")
    }
    unsynced = Recorded([one for one in whole.operations if one.kind != FSYNC or one.file not in folders])
    for number, made in enumerate((whole, unsynced)):
        promised = next(at for at, text in made.marks if "snapshot" in text)
        cut = made.worst_cut(promised + 1)
        if made is whole:
            power_cut(made, DURABLE, cut, tmp_path / str(number))
        else:
            with pytest.raises(TrialError, match="snapshots are gone"):
                power_cut(made, DURABLE, cut, tmp_path / str(number))


BEFORE = may_cut()

if BEFORE is not None:  # else there is no such test here: the states of the model are checked everywhere

    @pytest.mark.nightly
    @pytest.mark.parametrize("policy", POLICIES)
    def test_after_a_cut_of_a_real_file_system_everything_starts_and_nothing_durable_is_lost(
        policy: str,
    ) -> None:
        program = (sys.executable, "-m", "tests.power.real_disk", policy, str(FIRST_SEED), "2")
        command = [*(BEFORE or ()), *program]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-3_000:]
