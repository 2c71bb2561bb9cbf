"""Ordered actors in the harness, held against an oracle: crashes, replays, schedules and late events change nothing."""

from __future__ import annotations

from random import Random

import pytest

from tailrace.core.engine.settings import TaskSettings
from tailrace.core.values.partitioner import partition_of
from tailrace.testing import Harness
from tests.core.ordered import Event, Said, history, joining, oracle

PARTITIONS = 2
KEYS = "klmno"


def by_key(said: list[tuple[str, str]]) -> dict[str, list[str]]:
    return {key: [text for other, text in said if other == key] for key in KEYS}


def expected(events: dict[str, list[Event]]) -> dict[str, list[str]]:
    said: list[tuple[str, str]] = []
    for partition in range(PARTITIONS):
        here = {
            name: [one for one in of_input if partition_of(one.key.encode(), PARTITIONS) == partition]
            for name, of_input in events.items()
        }
        said += oracle(here, ends=True)
    return by_key(said)


@pytest.mark.one_seed_in(25)
def test_a_harness_with_crashes_and_its_replay_come_to_what_the_oracle_says(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        events = history(random, keys=KEYS)
        left = {name: list(of_input) for name, of_input in events.items()}
        with Harness(app := joining(partitions=PARTITIONS)) as h:
            while names := [name for name, of_input in left.items() if of_input]:
                name = random.choice(names)
                some = random.randrange(1, 9)
                h.send(app.topics[name], *left[name][:some])
                del left[name][:some]
                if random.random() < 0.15:
                    h.crash()
            h.end_of_input()
            said = [(one.key, one.text) for one in h.emitted(app.topics["said"]) if isinstance(one, Said)]
            assert by_key(said) == expected(events), seed
            h.replay()


def test_an_input_that_waits_for_others_for_want_of_memory_is_read_before_its_end() -> None:
    app = joining()
    with Harness(app, settings=TaskSettings(cache_bytes=0)) as h:
        h.send(app.topics["right"], Event("k", 1_000, 0))
        for number in range(10):
            h.send(app.topics["left"], Event("k", 2_000 + number, number))
        assert h._service.task(0).positions["left"] < 10, (
            "it waits for the right, whose events may be earlier"
        )
        h.end_of_input()
        handled = [
            one.text for one in h.emitted(app.topics["said"]) if isinstance(one, Said) and "after" in one.text
        ]
        assert len(handled) == 11
        assert not [text for text in handled if "late" in text]


@pytest.mark.one_seed_in(100)
def test_no_schedule_changes_anything(seeds: range) -> None:
    for seed in seeds:
        events = history(Random(seed), keys=KEYS)
        app = joining(partitions=PARTITIONS)
        sent = [(app.topics[name], one) for name, of_input in events.items() for one in of_input]
        with Harness(app) as h:
            assert h.explore(sent, schedules=10).equal, seed
