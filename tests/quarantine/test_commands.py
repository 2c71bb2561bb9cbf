"""Quarantine on a log, with the commands that a person uses: status, dead-letters, rebuild, replay."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.engine import quarantine
from tests.cli.commands import done, records, run
from tests.oracle.quarantine.model import Event, SetTimer
from tests.oracle.quarantine.rules import handled_of
from tests.quarantine.app import Done, Ev, app, world

APP = "tests.quarantine.app:app"
HISTORY = (
    Event(0, "ada", 1_000),
    Event(1, "ada", 1_010, sets=(SetTimer("a", 1_030, 0),)),
    Event(2, "ada", 1_020, fixed_in=1),  # from here on, ada waits
    Event(3, "bob", 1_021, sets=(SetTimer("b", 1_040, 1),)),  # the timer fails
    Event(5, "ada", 1_100, cancels=("a",)),  # too late: the timer is due before
    Event(6, "bob", 1_200),
    Event(8, "cyd", 1_300, fixed_in=2),
    Event(10, "cyd", 1_310),
)

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture
def ran(tmp_path: Path) -> Path:
    """The log after a first run, in which an event of ada, one of cyd, and a timer of bob have failed."""
    world.begin()
    path = tmp_path / "log"
    done("topics", "apply", "--app", APP, "--log", path)
    lines = b"\n".join(msgspec.json.encode(Ev.of(one)) for one in HISTORY)
    done("log", "append", "events", "--app", APP, "--log", path, stdin=lines)
    go(path)
    return path


def go(path: Path) -> None:
    """Run the service over all there is."""
    done("run", APP, "--until-end", "--allow-dead-letters", "--log", path, "--state", path.parent / "state")


def letters(path: Path) -> dict[tuple[str, str], list[Any]]:
    """The dead letters by actor and key."""
    found: dict[tuple[str, str], list[Any]] = {}
    for one in done("dead-letters", "list", APP, "--json", "--log", path).lines:
        found.setdefault((one["actor"], one["key"]), []).append(one)
    return found


def handled(path: Path) -> dict[str, list[str]]:
    """By key, what the accounts have emitted."""
    found: dict[str, list[str]] = {}
    for _, record in records(path, "done"):
        one = msgspec.json.decode(record.value, type=Done)
        found.setdefault(one.key, []).append(one.what)
    return found


def test_keys_wait_and_are_released_by_commands(ran: Path) -> None:
    assert handled(ran) == {"ada": ["e0", "e1"], "bob": ["e3"]}
    found = letters(ran)
    assert {key: [one["outcome"] for one in some] for key, some in found.items()} == {
        ("Accounts", "ada"): ["waits"],
        ("Accounts", "bob"): ["waits"],
        ("Accounts", "cyd"): ["waits"],
    }
    said = done("status", APP, "--log", ran).out
    assert "quarantine: 3 keys with 5 events wait; see 'tailrace dead-letters list'" in " ".join(said.split())
    (ada,), (cyd,) = (found["Accounts", key] for key in ("ada", "cyd"))
    assert (ada["reason"], ada["failure"], bytes.fromhex(ada["key_hex"])) == ("quarantined", 0, b"ada")
    world.version = 1
    done("dead-letters", "redrive", APP, "--all", "--log", ran)
    assert "waits" not in {one["outcome"] for some in letters(ran).values() for one in some}
    go(ran)
    assert handled(ran)["ada"] == handled_of(HISTORY, ())["ada"]
    assert handled(ran)["bob"] == handled_of(HISTORY, ())["bob"]
    assert "cyd" not in handled(ran)
    first, again = letters(ran)["Accounts", "cyd"]
    assert (first["outcome"], first["failed_as"], again["outcome"]) == ("failed", again["id"], "waits")
    # What has failed is dropped. The first decision is repeated, and does nothing.
    done("dead-letters", "redrive", APP, "--id", cyd["id"], "--log", ran)
    assert (
        "1 dead letter was dropped."
        in done("dead-letters", "drop", APP, "--id", again["id"], "--log", ran).out
    )
    go(ran)
    assert handled(ran)["cyd"] == handled_of(HISTORY, ("e8",))["cyd"] == ["e10"]
    (*_, again, dropped) = letters(ran)["Accounts", "cyd"]
    assert (again["outcome"], dropped["reason"], dropped["outcome"]) == ("dropped", "dropped", "pending")
    assert "quarantine:" not in done("status", APP, "--log", ran).out
    # A dropped event can be redriven like any dead letter.
    world.version = 2
    done("dead-letters", "redrive", APP, "--id", dropped["id"], "--log", ran)
    go(ran)
    assert handled(ran)["cyd"] == ["e10", "e8"]
    done("replay", APP, "--log", ran, "--state", ran.parent / "state", "--compare")


def test_only_a_failure_for_which_a_key_waits_is_dropped(ran: Path) -> None:
    (ada,) = letters(ran)["Accounts", "ada"]
    done("dead-letters", "drop", APP, "--id", ada["id"], "--all-that-waits", "--log", ran)
    go(ran)
    assert handled(ran)["ada"] == ["e0", "e1", "ta"]
    first, *dropped = letters(ran)["Accounts", "ada"]
    assert first["outcome"] == "dropped"
    assert [one["reason"] for one in dropped] == ["dropped"] * 2
    ended = run("dead-letters", "drop", APP, "--id", dropped[0]["id"], "--log", ran)
    assert ended.code == 2
    assert "Only a dead letter with the reason 'quarantined' can be dropped" in " ".join(ended.err.split())


def test_a_rebuild_has_what_waits_and_a_service_goes_on_from_it(ran: Path, tmp_path: Path) -> None:
    rebuild = ("rebuild", APP, "--log", ran, "--to", tmp_path / "made", "--workers", 1)
    assert "an app with a quarantine is done in one piece" in done(*rebuild, "--split", 2).out
    world.version = 2
    done("dead-letters", "redrive", APP, "--all", "--log", ran)
    again = ("--log", ran, "--state", tmp_path / "other", "--from-snapshot", tmp_path / "made")
    done("run", APP, "--until-end", "--allow-dead-letters", *again)
    assert handled(ran) == handled_of(HISTORY, ())
    done("replay", APP, "--log", ran, "--state", tmp_path / "other", "--compare")
    refused = run(*rebuild, "--order", "canonical")
    assert refused.code != 0
    assert "canonical order knows nothing of what was dropped" in " ".join(refused.err.split())
    refused = run("replay", APP, "--log", ran, "--trace", "ada")
    assert refused.code != 0
    assert "wait in quarantine, and only some keys are replayed" in " ".join(refused.err.split())


def test_a_question_about_a_key_that_waits_says_so(ran: Path) -> None:
    (ada,) = done("get", APP, "Accounts", "ada", "--json", "--log", ran).lines
    assert (ada["fields"]["handled"], ada["quarantined_events"]) == (["e0", "e1"], 2)
    refused = run("get", APP, "Accounts", "cyd", "--log", ran)
    assert refused.code != 0
    assert "It waits in quarantine, with 2 events" in " ".join(refused.err.split())
    world.version = 2
    done("dead-letters", "redrive", APP, "--all", "--log", ran)
    go(ran)
    (ada,) = done("get", APP, "Accounts", "ada", "--json", "--log", ran).lines
    assert "quarantined_events" not in ada


def test_a_key_that_waits_outlives_its_state_folder(ran: Path, tmp_path: Path) -> None:
    world.version = 2
    done("dead-letters", "redrive", APP, "--all", "--log", ran)
    done("run", APP, "--until-end", "--allow-dead-letters", "--log", ran, "--state", tmp_path / "empty")
    assert handled(ran) == handled_of(HISTORY, ())


def test_at_a_bound_the_failures_are_committed_so_that_they_can_be_decided_about(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Although all of it comes within one commit. Both bounds name what to do."""
    monkeypatch.setattr(quarantine, "EVENTS_MOST", 5)
    lines = [msgspec.json.encode(Ev.of(Event(at, "ada", 2_000 + at))) for at in range(100, 110)]
    done("log", "append", "events", "--app", APP, "--log", ran, stdin=b"\n".join(lines))
    again = ("run", APP, "--until-end", "--allow-dead-letters", "--log", ran, "--state", ran.parent / "state")
    for _ in range(2):
        ended = run(*again)
        assert ended.code == 1
        assert "5 events of Accounts 'ada' wait in quarantine" in " ".join(ended.err.split())
    monkeypatch.setattr(quarantine, "KEYS_MOST", 3)
    world.version = 1
    for one in letters(ran)["Accounts", "ada"]:
        done("dead-letters", "redrive", APP, "--id", one["id"], "--log", ran)
    monkeypatch.setattr(quarantine, "EVENTS_MOST", 100)
    go(ran)
    assert handled(ran)["ada"][-10:] == [f"e{at}" for at in range(100, 110)]


def test_one_key_too_many_is_committed_and_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quarantine, "KEYS_MOST", 2)
    world.begin()
    path = tmp_path / "log"
    done("topics", "apply", "--app", APP, "--log", path)
    lines = [msgspec.json.encode(Ev.of(Event(at, f"k{at}", 2_000 + at, fixed_in=1))) for at in (0, 1, 2)]
    done("log", "append", "events", "--app", APP, "--log", path, stdin=b"\n".join(lines))
    again = ("run", APP, "--until-end", "--allow-dead-letters", "--log", path, "--state", tmp_path / "state")
    ended = run(*again)
    assert ended.code == 1
    said = " ".join(ended.err.split())
    assert "2 keys of a task wait in quarantine, and one more has failed" in said
    assert "Release or drop some of them" in said
    assert len(letters(path)) == 2
    world.version = 1
    done("dead-letters", "redrive", APP, "--all", "--log", path)
    done(*again)
    assert handled(path) == {"k0": ["e0"], "k1": ["e1"], "k2": ["e2"]}
    done("replay", APP, "--log", path, "--state", tmp_path / "state", "--compare")


def test_an_app_does_not_leave_its_quarantine_while_keys_wait(
    ran: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("--until-end", "--allow-dead-letters", "--log", ran, "--state", ran.parent / "state")
    monkeypatch.setattr(app, "on_error", "dead-letter-all")
    monkeypatch.setattr(app, "_plan", None)
    refused = run("run", APP, *arguments, "--change-inputs")
    assert refused.code != 0
    assert "keys wait in quarantine, and the app 'bank' does not have on_error=" in " ".join(
        refused.err.split()
    )
    assert handled(ran) == {"ada": ["e0", "e1"], "bob": ["e3"]}
    monkeypatch.setattr(app, "on_error", "quarantine")
    monkeypatch.setattr(app, "_plan", None)
    world.version = 2
    done("dead-letters", "redrive", APP, "--all", "--log", ran)
    go(ran)
    monkeypatch.setattr(app, "on_error", "dead-letter-all")
    monkeypatch.setattr(app, "_plan", None)
    done("run", APP, *arguments, "--change-inputs")
    monkeypatch.setattr(app, "_plan", None)


def test_another_app_does_not_begin_with_keys_that_wait(ran: Path, tmp_path: Path) -> None:
    done("snapshot", "create", APP, "--snapshots", tmp_path / "made", "--log", ran)
    copied = (
        "run",
        APP,
        "--as",
        "bank2",
        "--from-snapshot",
        tmp_path / "made",
        "--change-inputs",
        "--create-topics",
    )
    refused = run(*copied, "--until-end", "--log", ran, "--state", tmp_path / "copy")
    assert refused.code != 0
    assert "keys wait in quarantine: another app cannot release them" in " ".join(refused.err.split())


def test_a_bounded_run_says_that_events_wait_also_those_of_earlier_runs(ran: Path) -> None:
    lines = msgspec.json.encode(Ev.of(Event(20, "ada", 3_000)))
    done("log", "append", "events", "--app", APP, "--log", ran, stdin=lines)
    again = ("run", APP, "--until-end", "--log", ran, "--state", ran.parent / "state")
    ended = run(*again)
    assert ended.code == 3
    assert "3 keys with 6 events wait in quarantine" in " ".join(ended.err.split())
    done(*again, "--allow-dead-letters")
