"""Apps by chance whose operators are ordered and send to each other: ``tests.history.rebuilding.random_rounds:app_7``."""

from __future__ import annotations

from functools import lru_cache
from random import Random
from typing import Any, NamedTuple

from tailrace.core.errors import TailraceError
from tests.cast.webs import Piece, Web, pieces, web_of


class Drawn(NamedTuple):
    web: Web
    events: dict[str, list[Piece]]


@lru_cache
def drawn(seed: int) -> Drawn:
    """An app that can be made: operators that a stream connects must not wait for themselves."""
    random = Random(seed)
    while True:
        try:
            web = web_of(random, order="event-time")
        except TailraceError:
            continue
        if web.app.plan().partitions > 1:
            return Drawn(web, pieces(web, random))


def __getattr__(name: str) -> Any:
    kind, _, seed = name.partition("_")
    if kind != "app" or not seed.isdigit():
        raise AttributeError(name)
    return drawn(int(seed)).web.app
