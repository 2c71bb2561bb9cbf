"""What is asked of tables on any log. The oracle folds all records of a topic in plain Python."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import closing
from random import Random
from typing import Any
from urllib.parse import quote

import msgspec
import pytest

import tailrace as tr
from tailrace.core.records import InputRecord, Output
from tailrace.history.reading.app_topics import prepare_topics
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import StoredLog
from tailrace.log.opening import open_log
from tests.cli.commands import Ended, run
from tests.runtime.processes import wait_until
from tests.serve.asking import Asked, Said, serving
from tests.serve.till import PARTITIONS, Price, Revenue, Stock, app, prices, revenues, stocks

TILL = "tests.serve.till:app"
SHOPS = ["ada", "a/b %2F?ü..", "", "..", "\0", "moved", "k" * 3_000, "日本"]
EVENTS: dict[str, list[Any]] = {
    "revenues": [Revenue(shop, 0) for shop in SHOPS],
    "prices": [Price(item, 0) for item in (0, 1, -17, 1 << 40)],
    "stocks": [Stock(shop, item, 0) for shop in SHOPS[:3] for item in (3, -3)],
}
TABLES: dict[str, tr.Table[Any, Any]] = {"revenues": revenues, "prices": prices, "stocks": stocks}
VALUES = {"revenues": "euros", "prices": "cents", "stocks": "left"}


def prepared(place: str) -> StoredLog:
    log = open_log(place, create=not place.startswith("kafka"))
    prepare_topics(log, app.plan(), create_declared=True)
    return log


def key_of(table: str, event: Any) -> Any:
    key: Any = TABLES[table].key_of
    return key(event)


def output(table: str, event: Any, at_ms: int = 1, *, deletes: bool = False) -> Output:
    topic = TABLES[table]
    return Output(table, topic.encode_key(event), None if deletes else topic.encode(event), at_ms)


def changes(random: Random, count: int) -> Iterator[Output]:
    for at_ms in range(count):
        table = random.choice([*TABLES])
        event = msgspec.structs.replace(random.choice(EVENTS[table]), **{VALUES[table]: at_ms})
        yield output(table, event, at_ms, deletes=random.random() < 0.3)


def oracle(log: StoredLog, table: str) -> dict[bytes, tuple[int, Any]]:
    """By record key, timestamp and event."""
    found: dict[bytes, InputRecord] = {}
    for number in range(log.partitions(table)):
        for record in scan(log, table, number):
            if record.value is None:
                found.pop(record.key or b"", None)
            else:
                found[record.key or b""] = record
    decode = TABLES[table].decode
    return {key: (one.timestamp_ms, decode(one.value or b"")) for key, one in found.items()}


def written(key: Any) -> str:
    text = key if isinstance(key, str) else json.dumps(key)
    return quote(text, safe="").replace("..", "%2E%2E")


def asked_of(asked: Asked, table: str, event: Any, field: str = "") -> Said:
    return asked.ask(f"/tables/{table}/{written(key_of(table, event))}" + (f"/{field}" if field else ""))


def got(place: str, table: str, event: Any, *arguments: str) -> Ended:
    key = written(key_of(table, event))
    return run("get", TILL, "--log", place, "--json", "--percent-encoded", "--", table, key, *arguments)


def expect(said: Said, table: str, expected: tuple[int, Any] | None) -> None:
    """The answer is of this timestamp and event, or there is none."""
    if expected is None:
        assert said.status == 404
        return
    assert said.status == 200
    at_ms, event = expected
    assert (said.body["app"], said.body["table"], said.body["timestamp_ms"]) == ("till", table, at_ms)
    assert said.body["value"] == msgspec.to_builtins(event)


def check_all(log: StoredLog, asked: Asked, *, by_command: bool = False) -> None:
    """The server, the client and, if wanted, the command say the same as the oracle, of every key."""
    with tr.Client(app, log.place) as client:
        for table, events in EVENTS.items():
            found = oracle(log, table)
            for event in events:
                expected = found.get(TABLES[table].encode_key(event) or b"")
                expect(asked_of(asked, table, event), table, expected)
                given = client.get(TABLES[table], key_of(table, event))
                assert given == (None if expected is None else expected[1])
                if by_command:
                    ended = got(log.place, table, event)
                    lines = ended.lines if ended.code == 0 else [None]
                    expect(Said(200 if ended.code == 0 else 404, lines[0], {}), table, expected)


def until_read(log: StoredLog, asked: Asked) -> None:
    """Wait until the server has read each partition of the tables to its end."""

    def is_read() -> bool:
        said = asked.ask("/readyz")
        if said.status != 200:
            return False
        places = {(one["table"], one["partition"]): one["offset"] for one in said.body["partitions"]}
        return all(
            places[table, number] >= log.end_offset(table, number)
            for table in TABLES
            for number in range(PARTITIONS)
        )

    wait_until(is_read, "the tables are read")


def check_that_all_say_what_a_dict_is(place: str, seed: int = 7) -> None:
    random = Random(seed)
    with closing(prepared(place)) as log:
        log.append_all(changes(random, 60))
        with serving(place, range(PARTITIONS), TILL) as asked:
            until_read(log, asked)
            check_all(log, asked, by_command=True)
            for _ in range(3):
                log.append_all(changes(random, 25))
                until_read(log, asked)
                check_all(log, asked)


def check_that_an_aborted_change_is_not_seen(place: str) -> None:
    with closing(prepared(place)) as log:
        log.append_all([output("revenues", Revenue("ada", 5))])
        with serving(place, range(PARTITIONS), TILL) as asked:
            writer = log.writer("other")
            writer.append([output("revenues", Revenue(shop, 9)) for shop in SHOPS])
            writer.append([output("revenues", Revenue("ada", 0), deletes=True)])
            writer.abort()
            until_read(log, asked)
            check_all(log, asked)
            writer.append([output("revenues", Revenue("ada", 6))])
            writer.commit()
            until_read(log, asked)
            assert asked_of(asked, "revenues", Revenue("ada", 0), "euros").body["value"] == 6
            writer.close()


def check_misplaced(place: str) -> None:
    """A key in a partition where murmur2 would not put it is neither taken for absent nor for the value."""
    with closing(prepared(place)) as log:
        log.append_all([output("prices", Price(1, 5))])
        misplaced = output("revenues", Revenue("ada", 7))
        right = next(n for n in range(PARTITIONS) if n in log_ends(log, misplaced))
        wrong = (right + 1) % PARTITIONS
        log.append_all([output("revenues", Revenue("ada", 8), 3, deletes=True)])
        log.append_all([misplaced], wrong)
        refused = f"belongs to partition {right} by murmur2"
        assert refused in got(place, "revenues", Revenue("ada", 0)).err
        with serving(place, range(PARTITIONS), TILL) as asked, tr.Client(app, place) as client:
            until_read(log, asked)
            said = asked_of(asked, "revenues", Revenue("ada", 0))
            assert (said.status, refused in said.body["error"]) == (500, True)
            assert any(refused in one["trouble"] for one in asked.ask("/readyz").body["partitions"])
            assert asked_of(asked, "prices", Price(1, 0), "cents").body["value"] == 5, "another table"
            with pytest.raises(tr.TailraceError, match=refused):
                client.get(revenues, "ada")
            log.append_all([output("revenues", Revenue("ada", 0), deletes=True)], wrong)
            until_read(log, asked)
            check_all(log, asked)


def log_ends(log: StoredLog, one: Output) -> set[int]:
    """The partition that a record is put into."""
    return {place.partition for place in log.append_all([one])}
