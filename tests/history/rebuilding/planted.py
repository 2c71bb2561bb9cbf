"""Random apps in two versions, of which the second has a change in one operator, and what plain Python says of both.

``tests.history.rebuilding.planted:a_7`` is the app of seed 7 and ``b_7`` its other version. Their operators take events as they come or
in the order of event time, have windows and timers, and send to each other by messages, streams and topics. What they come to depends
on no schedule.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from random import Random
from typing import Any, NamedTuple
from zlib import crc32

from tailrace.core.engine.stages import Stages
from tailrace.core.errors import OptionError, TailraceError
from tests.cast.webs import Kept, Node, Piece, Plant, Reached, Web, pieces, reach, records, sums, web_of
from tests.history.rebuilding import lived

FAR_MS = 10_000_000
"""Of the last events, which let time pass in all partitions."""
LAST_MS = FAR_MS - 1


class Drawn(NamedTuple):
    web: Web
    changed: Web
    events: dict[str, list[Piece]]


@lru_cache
def drawn(seed: int) -> Drawn:
    """An app that can be made, and a change that something meets."""
    random = Random(f"planted {seed}")
    while True:
        try:
            web = web_of(random)
            for node in web.nodes:
                node.order = random.choice(("event-time", "arrival"))
            for node in web.nodes:
                node.commutes = not is_known(web, node)
            web = replace(web)
        except TailraceError:  # operators that a stream connects would wait for themselves
            continue
        events = _apart(pieces(web, random))
        plant = _planted(web, events, random)
        if plant is not None:
            for number, some in enumerate(events.values()):
                some += [Piece(f"far{n}", FAR_MS + number, 1) for n in range(12)]
            return Drawn(web, replace(web, plant=plant), events)


def _apart(found: dict[str, list[Piece]]) -> dict[str, list[Piece]]:
    """Events of which no two have the same time: so each is known by it."""
    times = Counter(one.at for some in found.values() for one in some)
    return {name: [one for one in some if times[one.at] == 1] for name, some in found.items()}


def _planted(web: Web, events: dict[str, list[Piece]], random: Random) -> Plant | None:
    """A change of some of what an operator takes, or of all that its keys take from some call on."""
    kept = reach(web, events).kept
    sender = random.random() < 0.6
    nodes = [one for one in web.nodes if sends(web, one) == sender]
    node = random.choice(nodes or web.nodes)
    if not kept[node.name]:
        return None
    keys = random.sample(sorted(kept[node.name]), min(len(kept[node.name]), random.choice((1, 1, 3))))
    plant = Plant(node.name, frozenset(keys), more=random.choice((None, 1_000, 1_000)))
    if node.width and is_known(web, node) and reads_sources(web, node) and random.random() < 0.5:
        return replace(plant, since=random.randint(1, kept[node.name][keys[0]].calls))
    some = [one.at for key in keys for one in kept[node.name][key].counted]
    return replace(plant, times=frozenset(random.sample(some, min(len(some), random.choice((1, 1, 3))))))


def __getattr__(name: str) -> Any:
    kind, _, seed = name.partition("_")
    if kind not in ("a", "b") or not seed.isdigit():
        raise AttributeError(name)
    one = drawn(int(seed))
    return (one.web if kind == "a" else one.changed).app


def app_of(seed: int, version: str) -> str:
    return f"{__name__}:{version}_{seed}"


def has_stages(seed: int) -> bool:
    """Whether no operators of it feed each other: a stream and a topic between the same ones make a circle."""
    try:
        Stages(drawn(seed).changed.app.plan())
    except OptionError:
        return False
    return True


def fed(folder: Path, seed: int) -> None:
    """A log with the events, those of each topic in their order."""
    web, _, events = drawn(seed)
    lived.append(folder, list(records(web, events)), dict.fromkeys(topics_of(web), web.partitions))


def topics_of(web: Web) -> list[str]:
    return sorted({*web.sources, *(t for n in web.nodes for t in (*n.topics, *n.targets)), "results"})


# --- what plain Python says


def reads_sources(web: Web, node: Node) -> bool:
    """Whether an operator reads from outside only."""
    return node.stream is None and not node.gets_messages and all(one in web.sources for one in node.topics)


def is_known(web: Web, node: Node) -> bool:
    """Whether the order in which an operator takes what it gets follows from the events alone."""
    one_source = reads_sources(web, node) and len(node.topics) == 1
    return web.order_of(node) == "event-time" or (one_source and node.topics[0] not in web.repartitioned)


def sends(web: Web, node: Node) -> bool:
    """Whether an operator sends to its own app."""
    read = {name for one in web.nodes for name in one.topics}
    return bool(node.sends or {*node.targets} & read)


def sent(web: Web, reached: Reached) -> list[Counter[Piece]]:
    """All that the app has sent to itself."""
    names = {name for one in web.nodes for name in (*one.topics, f"inbox {one.name}")} - {*web.sources}
    return [Counter(reached.given.get(name, ())) for name in sorted(names)]


def fields(web: Web, node: Node, kept: Kept, until: int) -> dict[str, Any]:
    """The fields of a key."""
    open_ = {
        str(end // node.width): each for (_, end), each in sums(node, kept.counted).items() if end > until
    }
    found: dict[str, Any] = {
        "calls": kept.calls,
        "sums": {window: amount for window, (amount, _) in open_.items()},
        "hops": {window: hops for window, (_, hops) in open_.items()},
    }
    digest, instant = 0, (0, 0)
    for one in kept.counted:
        told = one.at, one.amount
        if web.order_of(node) == "event-time":
            told, instant = instant, (one.at, one.amount + (instant[1] if instant[0] == one.at else 0))
        if node.commutes:
            digest = (digest + crc32(f"{told}".encode())) % (1 << 32)
        elif web.order_of(node) == "arrival" or told[0] != one.at:
            digest = crc32(f"{told}".encode(), digest)
    return found | {"digest": digest, "instant": [*instant]}


def states(web: Web, reached: Reached, until: int) -> dict[tuple[str, str], dict[str, Any]]:
    """The fields by actor and key."""
    return {
        (node.name, key): fields(web, node, each, until)
        for node in web.nodes
        if node.width
        for key, each in reached.kept[node.name].items()
    }


def read_fields(state: list[lived.TaskState]) -> dict[tuple[str, str], dict[str, Any]]:
    """The fields by actor and key that rows hold, without keys that nothing has called."""
    return {place: found for place, found in lived.fields(state).items() if found.get("calls")}
