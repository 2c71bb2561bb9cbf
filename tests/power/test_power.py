"""After a power cut at any operation the service starts by itself, and its results are those of the log that is left."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.power.disk import Recorded
from tests.power.files import DURABLE, POLICIES
from tests.power.recording import FDATASYNC, FSYNC, MAKE_FOLDER
from tests.power.trials import TrialError, power_cut

STEP = 20


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
