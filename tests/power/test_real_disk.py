"""Where images can be mounted: power cuts of a real ext4 file system, checked like those of the model.

Without root or loop devices there is no such test here; the model's states are checked everywhere.
"""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.conftest import FIRST_SEED
from tests.power.files import POLICIES
from tests.power.real_disk import may_cut
from tests.power.recording import ROOT

BEFORE = may_cut()

if BEFORE is not None:

    @pytest.mark.parametrize("policy", POLICIES)
    def test_after_a_cut_of_a_real_file_system_everything_starts_and_nothing_durable_is_lost(
        policy: str,
    ) -> None:
        program = (sys.executable, "-m", "tests.power.real_disk", policy, str(FIRST_SEED), "2")
        command = [*(BEFORE or ()), *program]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stdout + done.stderr[-3_000:]
