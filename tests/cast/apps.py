"""The cast by names, also for other processes: ``tests.cast.apps:orders_7`` is the app of seed 7."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from random import Random

import tailrace as tr
from tailrace.core.errors import DefinitionError
from tests.cast import counting, operators, trading
from tests.cast.member import Case, Found
from tests.cast.webs import oracle, pieces, records, web_of
from tests.proof.seeds import shuffled


def webs(random: Random) -> Case:
    """Topics keyed again, streams, messages, windows and timers, in either order; see ``tests.cast.webs``."""
    order, web = random.choice(("arrival", "event-time")), None
    while web is None:
        try:
            web = web_of(random, order=order)
        except DefinitionError:  # operators that a stream connects would wait for themselves
            pass
    for node in web.nodes:
        node.commutes = order == "arrival"  # then its rows are the same in any order
    sources = pieces(web, random)
    some = [list(records(web, {name: one})) for name, one in sources.items()]
    inputs = []
    while some := [one for one in some if one]:
        one = random.choice(some)
        inputs += one[:5]
        del one[:5]

    def make(partitions: int) -> tr.App:
        return replace(web, partitions=partitions).app

    expected = Found({("results", one): count for one, count in oracle(web, sources).items()})
    return Case(make, web.partitions, inputs, expected, ("results",))


CAST: dict[str, Callable[[Random], Case]] = {
    one.__name__: one
    for one in (
        *(counting.count, counting.ships, counting.failing, trading.shop),
        *(trading.orders, trading.messages, operators.windows, operators.joins),
        *(operators.tables, operators.broadcast, operators.chained, webs),
    )
}


def case_of(name: str, seed: int) -> Case:
    """What a seed says of a member."""
    return CAST[name](Random(f"{name} {seed}"))


def place(name: str, seed: int) -> str:
    """How a rebuild names the app; ``programs`` are the random ones that no oracle knows."""
    return f"{__name__}:{name}_{seed}"


def __getattr__(name: str) -> tr.App:
    member, _, seed = name.partition("_")
    if member == "programs":
        return shuffled(int(seed)).model.app
    if member not in CAST:
        raise AttributeError(name)
    case = case_of(member, int(seed))
    return case.make(case.partitions)
