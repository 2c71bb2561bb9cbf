"""Rounds that keep their stores: after any number of rounds the state is that which the service has, however often it was killed."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path
from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tailrace.core.engine.replay import Replay
from tailrace.core.errors import OptionError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.failures import Failed
from tailrace.history.rebuilding.following import Follower, Followers
from tailrace.processes.app_loading import find_app
from tailrace.state import MemoryStore
from tests.history.rebuilding.lived import TALLY, done, live, opened, rebuilt, request, serve_tallies


@pytest.mark.parametrize("store", ["memory", "rocks"])
def test_a_round_is_the_state_of_the_service_and_has_only_what_has_changed(
    tmp_path: Path, store: str
) -> None:
    random = Random(store)
    serve_tallies(tmp_path, keys=40, rounds=2)
    _, found = done(tmp_path)
    followers = Followers(tmp_path / "first")
    with ExitStack() as killed:
        for number in range(6):
            if random.random() < 0.4:  # a new process, which has no stores
                followers = Followers(tmp_path / str(number))
            if number != 3:  # then nothing has happened since
                serve_tallies(tmp_path, keys=random.choice([3, 45]), rounds=1, first_round=2 + number)
            base = {"base": str(tmp_path / "snapshots"), "base_id": found.manifest.id}
            asked = request(tmp_path, incremental=True, order="tape", store=store, **base)
            found = opened(asked, rebuild(asked, LocalEngine(1, followers)))
            assert found.manifest.kind == "incremental"
            kept = [followers._kept[one].follower for one in followers._kept]
            for one in kept:
                killed.callback(one.close)
            expected = live(tmp_path, find_app(TALLY).plan())
            assert [(one.cut, one.rows) for one in rebuilt(found)] == [
                (one.cut, one.rows) for one in expected
            ]
            written = sum(file.rows for task in found.manifest.tasks for file in task.files)
            if number == 3:
                assert written == 0


def test_a_follower_is_used_only_at_the_snapshot_and_with_the_code_of_the_last_round(tmp_path: Path) -> None:
    def job(base: str, code: str, snapshot: str = "") -> Any:
        return SimpleNamespace(base=base, code={"module app": code}, snapshot=snapshot)

    for base, code, is_used in (("s1", "a", True), ("s0", "a", False), ("s1", "b", False)):
        store, followers = MemoryStore(), Followers(tmp_path)
        kept = Follower(store, Failed(), lambda *_: (), lambda _: cast("Replay", None))
        closed = list[bool]()
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(store, "close", lambda closed=closed: closed.append(True))
            followers.keep(job("s0", "a", "s1"), 0, kept)
            found = followers.taken(job(base, code), 0)
        assert (found is kept, closed) == (is_used, [] if is_used else [True])
        assert followers.taken(job(base, code), 0) is None, "it is another's now, or closed"


def test_an_incremental_round_needs_its_parent_beside_it(tmp_path: Path) -> None:
    for options in ({}, {"base": str(tmp_path / "elsewhere")}):
        with pytest.raises(OptionError, match="lies where its parent does"):
            rebuild(request(tmp_path, incremental=True, order="tape", **options))
    with pytest.raises(OptionError, match="is made along the tape"):
        rebuild(request(tmp_path, incremental=True, order="canonical", base=str(tmp_path / "snapshots")))
