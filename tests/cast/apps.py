"""The cast by names, also for other processes: ``tests.cast.apps:orders_7`` is the app of seed 7."""

from __future__ import annotations

from collections.abc import Callable
from random import Random

import tailrace as tr
from tests.cast import counting, operators, random_webs, trading
from tests.cast.member import Case
from tests.proof.seeds import shuffled

CAST: dict[str, Callable[[Random], Case]] = {
    one.__name__: one
    for one in (
        *(counting.count, counting.ships, counting.failing, trading.shop),
        *(trading.orders, trading.messages, operators.windows, operators.joins),
        *(operators.tables, operators.broadcast, operators.chained, random_webs.webs),
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
