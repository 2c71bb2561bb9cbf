"""An app of several operators by chance, as a member of the cast."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import tailrace as tr
from tailrace.core.errors import DefinitionError
from tests.cast.member import Case, Found
from tests.cast.webs import oracle, pieces, records, web_of


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
