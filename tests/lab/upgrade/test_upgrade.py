"""``tailrace upgrade``: nothing is lost or doubled, wherever the command is killed, and every version goes by the whole history."""

from __future__ import annotations

import re
import signal
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import msgspec
import pytest

from tailrace.core.errors import OptionError
from tailrace.lab.upgrade.driver import Upgrading
from tests.lab.upgrade import stage, telling


@pytest.mark.long
def test_an_upgrade_killed_after_every_step_and_its_rollback_under_production(tmp_path: Path) -> None:
    """With TAILRACE_CLICKS_PER_S=1000, the rollback is killed after every step, too."""
    stage.upgraded_and_back(
        str(tmp_path / "log"), tmp_path, stage.STEPS[:-1], stage.STEPS[:-1] if stage.PER_S >= 1_000 else ()
    )


@pytest.mark.long
def test_changed_messages_and_a_second_upgrade(tmp_path: Path) -> None:
    """In stages: what was under way is handled by the old version. Version 3 is again as version 1."""
    log, old = tmp_path / "log", "tests.lab.upgrade.telling:app"
    versions = [
        old,
        stage.corrected(tmp_path, of=telling),
        stage.corrected(tmp_path, ("if True:", stage.BUG), of=telling, number=3),
    ]
    with ExitStack() as stack:
        producer = stack.enter_context(
            stage.Producer(log, batch=5)
        )  # each round begins with the first record
        runs = stack.enter_context(stage.service(old, log, tmp_path))
        runs.wait_for("a partition runs", times=2)
        for before, after in pairwise(versions):
            asked = msgspec.structs.replace(stage.wanted_in(tmp_path, after, rollback=False), old=before)
            stage.command(asked, killed_after="begun")
            waits = stack.enter_context(stage.service(after, log, tmp_path))
            assert stage.command(asked)["order"] == "stages"
            assert runs.ended() == 1
            stage.await_outputs(
                log, len(producer.clicks) + 300
            )  # so that each user has clicked in each version
            runs = waits
        producer.stop()
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0
        with stage.service(versions[-1], log, tmp_path, "--end-of-input") as last:
            assert last.ended() == 0, last.complaint
    stage.check(log, producer.clicks, "ono")


def test_an_upgrade_in_a_quiet_hour(tmp_path: Path) -> None:
    stage.upgraded_in_a_quiet_hour(str(tmp_path / "log"), tmp_path)


def test_what_would_fail_at_the_end_is_refused_while_the_old_version_runs(tmp_path: Path) -> None:
    stage.refused_while_the_old_version_runs(str(tmp_path / "log"), tmp_path)


@pytest.mark.long
def test_the_command_ends_when_processes_of_the_new_version_fail_again_and_again(tmp_path: Path) -> None:
    """A topic that it writes to does not exist."""
    log, declared = tmp_path / "log", 'later = app.topic("later", Seen, key="user")\n'
    new = stage.corrected(
        tmp_path,
        (declared, declared + declared.replace("later", "more")),
        ("        ctx.emit(later,", "        ctx.emit(more, Seen(ctx.key, 0, 0))\n        ctx.emit(later,"),
    )
    producer = stage.Producer(log)
    with stage.service(stage.OLD, log, tmp_path, "--until-end") as first:
        assert first.ended() == 0, first.complaint
    asked = stage.wanted_in(tmp_path, new)
    stage.command(asked, killed_after="ready")
    with ThreadPoolExecutor() as pool:
        waits = pool.submit(stage.command, asked, fails=True)
        for _ in range(50):
            with stage.service(new, log, tmp_path) as broken:
                assert broken.ended() == 1
            if waits.done():
                break
        said = waits.result()
    assert re.search(r"a process of version '2' has failed: .*'more'", said)
    assert re.search(
        r"have failed before they had begun .*\([5-9] failures\), the last one by: .*'more'", said
    )
    assert "run this command again: it resumes" in said
    with stage.service(new, log, tmp_path, "--create-topics") as runs:
        assert stage.command(asked)["done"]
        producer.more(300)
        stage.await_outputs(log, 599)
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0


def test_a_second_upgrade_is_refused_until_the_first_is_given_up(tmp_path: Path) -> None:
    log, new = tmp_path / "log", stage.corrected(tmp_path)
    stage.Producer(log)
    with stage.service(stage.OLD, log, tmp_path, "--until-end") as first:
        assert first.ended() == 0, first.complaint
    asked = stage.wanted_in(tmp_path, new, rollback=False)
    stage.command(asked, killed_after="fenced")
    with stage.service(stage.OLD, log, tmp_path, "--until-end") as refused:
        assert refused.ended() == 1
        assert "is being upgraded from version '1' to '2'" in refused.complaint
    third = msgspec.structs.replace(asked, new=stage.corrected(tmp_path, number=3))
    with (
        ExitStack() as stack,
        pytest.raises(
            OptionError, match="another upgrade of 'clicking' is under way: from version '1' to '2'"
        ),
    ):
        Upgrading(third, stack).run()
    with ExitStack() as stack:
        waits = stack.enter_context(stage.service(new, log, tmp_path))
        waits.wait_for("waits for the upgrade from version '1'")
        assert Upgrading(asked, stack).cancel()
        assert not Upgrading(asked, stack).cancel()
        assert waits.ended() == 1
        assert "was given up while this process waited for it" in waits.complaint
    with stage.service(stage.OLD, log, tmp_path, "--until-end") as again:
        assert again.ended() == 0, again.complaint


@pytest.mark.long
def test_a_new_field_a_new_actor_and_a_renamed_one_know_the_whole_history(tmp_path: Path) -> None:
    log = tmp_path / "log"
    producer = stage.Producer(log)
    with stage.service(stage.OLD, log, tmp_path, "--until-end") as first:
        assert first.ended() == 0, first.complaint
    new = stage.corrected(
        tmp_path,
        ("@app.actor\nclass User", '@app.actor(name="User")\nclass Person'),
        ("    total: int = 0\n", "    total: int = 0\n    times: int = 0\n"),
        (
            "        ctx.emit(seen, Seen(event.user, event.at, self.total))",
            (
                "        self.times += 1\n        ctx.emit(later, Seen(event.user, -event.at, self.times))\n"
                "        ctx.emit(seen, Seen(event.user, event.at, self.total))"
            ),
        ),
        (
            'later = app.topic("later", Seen, key="user")\n',
            (
                'later = app.topic("later", Seen, key="user")\n\n\n@app.actor\nclass Counter(tr.Actor):\n    count: int = 0\n\n'
                "    @tr.process(clicks)\n    def counted(self, event: Click, ctx: tr.Context[str]) -> None:\n"
                '        self.count += 1\n        ctx.emit(seen, Seen("counted " + event.user, event.at, self.count))\n'
            ),
        ),
    )
    asked = stage.wanted_in(tmp_path, new)
    stage.command(asked, killed_after="ready")
    with stage.service(new, log, tmp_path) as runs:
        assert stage.command(asked)["done"]
        producer.more(300)
        stage.await_outputs(log, 300 + 2 * 300 - 1)
        runs.signal(signal.SIGTERM)
        assert runs.ended() == 0
    times = Counter[str]()
    expected: dict[int, int] = {}
    for one in producer.clicks:
        times[one.user] += 1
        expected[one.at] = times[one.user]
    live = {one.at: expected[one.at] for one in producer.clicks[300:]}
    totals_now = stage.totals(producer.clicks, forgets=False)
    made = [one for part in stage.outputs(log, "seen") for one in part if one.at in live]
    assert {one.at: one.total for one in made if one.user.startswith("counted ")} == live
    assert {one.at: one.total for one in made if one.user.startswith("user ")} == {
        at: totals_now[at] for at in live
    }
    found = {-one.at: one.total for part in stage.outputs(log, "later") for one in part if one.at < 0}
    assert found == live
