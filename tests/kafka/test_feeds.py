"""What a log keeps beside its records: feeds of publications, which give to a partition what the whole list says, and notes of positions."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

from tailrace.log.kafka.feeds import Feed, Waiting
from tailrace.log.kafka.watermarks import Published

PARTITIONS = 3


def history(random: Random, names: int, length: int) -> list[tuple[int, Published]]:
    """Publications with gaps between their offsets. The first publishers fall silent early."""
    ends = {name: [0] * PARTITIONS for name in range(names)}
    marks = dict.fromkeys(ends, 0)
    written, offset, found = [0] * PARTITIONS, 0, list[tuple[int, Published]]()
    for number in range(length):
        name = random.choice([one for one in ends if number < length // 4 or one >= names // 2])
        before = None
        for partition in random.sample(range(PARTITIONS), random.randrange(PARTITIONS + 1)):
            written[partition] += random.randrange(1, 4)
            ends[name][partition] = written[partition]
        offset += random.randrange(1, 3)
        marks[name] += random.randrange(3)
        mark = None if random.random() < 0.15 else marks[name]
        if mark is None and random.random() < 0.5:
            before = marks[name]
        found.append((offset, Published(f"w{name}", mark, before, list(ends[name]), "", "")))
    return found


def held(past: list[tuple[int, Published]], partition: int, position: int) -> dict[str, int | None]:
    """The oracle: the last publication of each publisher that holds."""
    return {one.name: one.watermark_ms for _, one in past if one.ends[partition] <= position}


def told(waiting: Waiting, position: int, known: dict[str, int | None]) -> dict[str, int | None]:
    for one in waiting.news(position):
        known[one.publisher] = one.watermark_ms
    return known


def test_each_position_gets_the_last_publication_of_each_publisher_that_holds_there(seeds: range) -> None:
    for seed in seeds:
        check_positions(seed)


def check_positions(seed: int) -> None:
    random = Random(seed)
    stretch, longest = random.choice((1, 4, 20, 1_000)), random.choice((5, 1_000))
    past = history(random, random.randrange(1, 6), random.randrange(1, 120))
    cut = random.randrange(len(past) + 1)
    end = past[cut - 1][0] + 1 if cut else 0

    def read(first: int, end_: int) -> Iterator[tuple[int, Published]]:
        assert first < end_ <= feed.read_to
        return (one for one in past if first <= one[0] < end_)

    # The publishers may be known from a little later than the end of the feed.
    ahead = past[: random.randrange(cut, min(len(past), cut + 3) + 1)]
    feed = Feed(0, end, {one.name: one for _, one in ahead}.values(), read, stretch=stretch, longest=longest)
    readers: list[tuple[int, int, Waiting, dict[str, int | None]]] = []
    last = [max((one.ends[number] for _, one in past), default=0) for number in range(PARTITIONS)]
    arriving = iter(past[cut:])
    come = cut
    while True:
        if random.random() < 0.2 or not readers:
            partition = random.randrange(PARTITIONS)
            position = random.randrange(last[partition] + 2)
            readers.append((partition, position, feed.waiting(partition, position), {}))
        for number, (partition, position, waiting, known) in enumerate(readers):
            later = min(position + random.randrange(3), last[partition] + 1)
            readers[number] = (partition, later, waiting, told(waiting, later, known))
            if come >= len(ahead):
                assert known == held(past[:come], partition, later)
        following = next(arriving, None)
        if following is None:
            break
        feed.add(*following)
        come += 1


def test_a_reader_that_is_far_behind_holds_few_and_applies_none_too_early(seeds: range) -> None:
    for seed in seeds:
        random = Random(seed)
        past = history(random, 3, 200)
        waiting = Waiting(0, most=6)
        for _, one in past:
            waiting.add(one)
        assert max(map(len, waiting._by_name.values()), default=0) <= 6
        known: dict[str, int | None] = {}
        last = max(one.ends[0] for _, one in past)
        for position in range(last + 1):
            told(waiting, position, known)
            for name, mark in known.items():
                said = [one.watermark_ms for _, one in past if one.name == name and one.ends[0] <= position]
                assert mark in said
        assert known == held(past, 0, last)
