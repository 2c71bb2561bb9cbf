"""On Kafka, keys wait in their tasks, and are released by a command from elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from tailrace.core.values.partitioner import partition_of
from tests.kafka.commands import tailrace
from tests.oracle.quarantine.model import Event, SetTimer
from tests.oracle.quarantine.rules import handled_of
from tests.quarantine.app import Done, Ev

_APP: Final = "tests.quarantine.app:app"
_PARTITIONS: Final = 2
_KEYS: Final = ("ada", "bob", "cyd", "dan", "eve", "flo")


def _history() -> list[Event]:
    """Each key has an event that fails until version 1, with a timer before it and events after it."""
    found: list[Event] = []
    for turn in range(6):
        for at, key in enumerate(_KEYS):
            number, time_ms = len(found), 1_000 + turn * 100 + at
            sets = (SetTimer(f"{key}{turn}", time_ms + 150, 1 if turn == 3 and key == "ada" else 0),)
            found.append(Event(number, key, time_ms, sets, fixed_in=int(turn == 2 and key != "eve")))
    return found


def test_keys_wait_and_are_released_on_kafka(kafka_url: str, tmp_path: Path) -> None:
    broken = {"BANK_PARTITIONS": str(_PARTITIONS), "BANK_VERSION": "0"}
    fixed = broken | {"BANK_VERSION": "2"}
    history = _history()
    events = tmp_path / "events.jsonl"
    events.write_bytes(b"\n".join(msgspec.json.encode(Ev.of(one)) for one in history))
    log = ("--log", kafka_url)
    run = ("run", _APP, "--until-end", "--allow-dead-letters", *log, "--state")
    tailrace("topics", "apply", "--app", _APP, *log, environment=broken)
    tailrace("log", "append", "events", events, "--app", _APP, *log, environment=broken)
    tailrace(*run, tmp_path / "state", environment=broken)
    listed = ("dead-letters", "list", _APP, "--json", *log)
    found = [msgspec.json.decode(line) for line in tailrace(*listed, environment=broken).splitlines()]
    waiting = {one["key"] for one in found if (one["actor"], one["outcome"]) == ("Accounts", "waits")}
    assert waiting == {*_KEYS} - {"eve"}
    tailrace("dead-letters", "redrive", _APP, "--all", *log, environment=fixed)
    tailrace(*run, tmp_path / "other", environment=fixed)  # restored from the changelog
    emitted: dict[str, list[str]] = {}
    for line in tailrace("log", "dump", "done", "--app", _APP, *log, environment=fixed).splitlines():
        one = msgspec.convert(msgspec.json.decode(line)["value"], Done)
        emitted.setdefault(one.key, []).append(one.what)
    for number in range(_PARTITIONS):
        mine = [one for one in history if partition_of(one.key.encode(), _PARTITIONS) == number]
        for key, must in handled_of(mine, ()).items():
            assert emitted[key] == must
    tailrace("replay", _APP, *log, "--state", tmp_path / "other", "--compare", environment=fixed)
