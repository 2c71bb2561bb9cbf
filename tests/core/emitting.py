"""What the tests of emissions share: an app, what may hold its topics, and a table of code."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum
from types import MappingProxyType, ModuleType, SimpleNamespace
from typing import Any, NamedTuple

import msgspec
import pytest

import tailrace as tr
from tailrace.core.declare.emissions import Emissions, emissions_of


class Event(msgspec.Struct):
    key: str
    kind: str = "a"
    held: str | None = None


class Ping(msgspec.Struct):
    number: int = 0


app = tr.App("emitting")
taken = app.topic("taken", Event, key="key", key_type=str)
a = app.topic("a", Event, key="key", key_type=str)
b = app.topic("b", Event, key="key", key_type=str)
c = app.topic("c", Event, key="key", key_type=str)
side = app.stream("side", Event)
elsewhere = tr.App("elsewhere").topic("elsewhere", Event, key="key", key_type=str)


class Receiver(tr.Actor):
    """An actor that messages are sent to."""

    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None: ...


class Other(tr.Actor):
    @tr.on_message
    def ping(self, message: Ping, ctx: tr.Context[str]) -> None: ...


class Topics(Enum):
    A = a
    B = b


@dataclass
class Settings:
    out: Any
    others: Any = ()


@dataclass(frozen=True, slots=True)
class Slotted:
    out: Any


class Route(NamedTuple):
    to: Any
    why: str


class Row(msgspec.Struct):
    to: Any


class Registry:
    """Topics by their names, as somebody may write it."""

    def __init__(self, **topics: Any) -> None:
        self._topics = topics

    def __getitem__(self, name: str) -> Any:
        return self._topics[name]

    def __iter__(self) -> Any:
        return iter(self._topics.values())

    def pick(self, name: str) -> Any:
        return self._topics.get(name)


class Loose:
    def __init__(self) -> None:
        self.hold = {"a": a}

    def __getattr__(self, name: str) -> Any:
        return self.hold[name]


class Descriptor:
    def __get__(self, one: object, cls: type) -> Any:
        return a


BY_KIND = {"a": a, "b": b}
NESTED = {"x": [(a, "why"), (b, "why")]}
PAIR = (a, b)
LIST = [a]
SET = {a, b}
PROXY = MappingProxyType({"a": a})
DEFAULTS: defaultdict[str, Any] = defaultdict(lambda: a, {"b": b})
ROUTES = {"a": Route(a, "so"), "b": Route(b, "so")}
ROWS = [Row(a), Row(b)]
NAMES = SimpleNamespace(a=a, deep=SimpleNamespace(b=b))
SETTINGS = Settings(out=a, others=[b])
SLOTTED = Slotted(a)
REGISTRY = Registry(a=a, b=b)
LOOSE = Loose()
KIND = "a"
LARGE = {str(number): number for number in range(20_000)}
package: Any = ModuleType("package")
inner: Any = ModuleType("package.inner")
inner.a, package.inner = a, inner
later: dict[str, Any] = {}


# --- the table ---

Function = Callable[..., None]


class Cases:
    """Functions, each with the topics and streams that it emits to."""

    def __init__(self) -> None:
        self.rows: list[Any] = []

    def case(self, *edges: Any) -> Callable[[Function], Function]:
        """A row: the function decorated."""

        def add(function: Function) -> Function:
            self.add(function.__name__, function, *edges)
            return function

        return add

    def add(self, name: str, function: Function, *edges: Any) -> None:
        """A row with a function that something has made."""
        assert name not in [row.id for row in self.rows], "a case hides another"
        self.rows.append(pytest.param(function, set(edges), id=name))


def read(*calls: Callable[..., None], cls: type[Any] | None = None) -> Emissions:
    """What is read of some handlers."""
    return emissions_of(calls, cls, app.topics.values(), app.streams.values(), [Receiver, Other])


def check(function: Function, edges: set[Any]) -> None:
    """Hold what is read of a function against what it does. Nothing in the table is hidden."""
    found = read(function)
    assert found.edges == edges
    assert found.hidden == ()
    assert found.actors == frozenset()
