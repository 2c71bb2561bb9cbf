"""The rows of a key from all that a commit now would write: slow, and an oracle for ``key_now`` and ``stored_now``."""

from __future__ import annotations

from typing import Any

from tailrace.core import rows
from tailrace.core.declare.plan import ActorPlan
from tailrace.core.engine.instance_cache import InstanceCache
from tailrace.core.engine.value_rows import KeyRows


def rows_now(cells: InstanceCache, actor: ActorPlan, key: Any) -> KeyRows:
    """The rows that a key would have after a commit now. Call it only between two calls of handlers."""
    prefix = rows.actor_prefix(actor.name) + rows.escaped(actor.key_codec.encode(key))
    found = {row[len(prefix) :]: value for row, value in cells.state.scan(prefix, rows.prefix_end(prefix))}
    for row, value in cells.collect()[0].items():
        if row.startswith(prefix):
            if value is None:
                found.pop(row[len(prefix) :], None)
            else:
                found[row[len(prefix) :]] = value
    return found
