"""Metrics in Python: a file of functions with ``@tr.metric``, loaded in the process of each version and run over what it has made."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any, TypeAlias

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.metric import Metric
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.engine.query import QueryReader
from tailrace.core.errors import OptionError, UsageError
from tailrace.history.reading.beginnings import rows_of
from tailrace.history.rebuilding.output_files import read_outputs
from tailrace.lab.differences import Made
from tailrace.state import MemoryStore
from tailrace.state.snapshots import Place, Snapshots

_MOST_NUMBERS = 2
Numbers: TypeAlias = dict[str, list[tuple[str | None, list[float]]]]
"""By metric: the numbers of each unit."""


def metric_names(plan: Plan, file: str) -> list[tuple[str, bool]]:
    """The metrics in a file, and whether each has a unit. Raises OptionError."""
    return [(one.name, one.unit is not None) for one in _metrics(plan, file)]


def python_metrics(plan: Plan, file: str, made: Made) -> Numbers:
    """Run the metrics in a file. Raises UsageError: a function fails."""
    return {one.name: _numbers(one, plan, made) for one in _metrics(plan, file)}


def _metrics(plan: Plan, file: str) -> list[Metric[Any]]:
    spec = importlib.util.spec_from_file_location("tailrace_metrics", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise OptionError(
            f"the metrics in {file!r} cannot be imported: {type(error).__name__}: {error}",
            hint="Import what both versions have.",
        ) from error
    found: list[Metric[Any]] = [one for one in vars(module).values() if isinstance(one, Metric)]
    names = [one.name for one in found]
    if not found or len({*names, "keys", "outputs"}) < len(names) + 2:
        raise OptionError(
            f"the metrics in {file!r} do not have names of their own, other than keys and outputs",
            hint="Put @tr.metric(topic) before a function.",
        )
    for one in found:
        known = one.of.name in plan.written if isinstance(one.of, Topic) else one.of in plan.by_class
        if not known:
            raise OptionError(
                f"the metric {one.name!r} is of no output and no actor of {plan.app!r}",
                hint="Name a topic that the app writes to, or an actor.",
            )
    return found


def _numbers(metric: Metric[Any], plan: Plan, made: Made) -> list[tuple[str | None, list[float]]]:
    found: dict[str | None, list[float]] = {}
    items = _events(metric.of, made) if isinstance(metric.of, Topic) else _states(metric.of, plan, made)
    for one in items:
        try:
            value = metric(one)
            unit = None if metric.unit is None else str(metric.unit(one))
        except Exception as error:
            raise UsageError(
                f"the metric {metric.name!r} fails with {type(error).__name__}: {error}", hint="Correct it."
            ) from error
        if value is not None:
            numbers = [float(each) for each in (value if isinstance(value, tuple) else (value,))]
            before = found.get(unit, [0.0] * len(numbers))
            if len(numbers) > _MOST_NUMBERS or len(before) != len(numbers):
                raise UsageError(
                    f"the metric {metric.name!r} returns {counted(len(numbers), 'number')} for an item, and others for another"
                    if len(numbers) <= _MOST_NUMBERS
                    else f"the metric {metric.name!r} returns {len(numbers)} numbers",
                    hint="Return a number, or two always: their totals are divided.",
                )
            found[unit] = [sum(pair) for pair in zip(before, numbers, strict=True)]
    return list(found.items())


def _events(topic: Topic[Any, Any], made: Made) -> Iterator[Any]:
    """The outputs to a topic, without those that delete a key."""
    for file in made.output_files():
        for _, one in read_outputs(Place.at(str(file))):
            if one.topic == topic.name and one.value is not None:
                yield topic.decode(one.value)


def _states(actor: type[Any], plan: Plan, made: Made) -> Iterator[Any]:
    """The states of the keys of an actor. Those of one partition are in memory."""
    snapshot, of = Snapshots(made.uri, plan.app).open(made.snapshot), plan.actor_of(actor)
    prefix = rows.actor_prefix(of.name)
    for number in range(plan.partitions):
        store = MemoryStore()
        store.write(dict(rows_of(snapshot, number)), b"")
        reader = QueryReader(plan, number, store)
        found = (rows.read_state_row(row).key for row, _ in store.scan(prefix, rows.prefix_end(prefix)))
        for key in dict.fromkeys(found):
            if (instance := reader.instance(actor, of.key_codec.decode(key))) is not None:
                yield instance
