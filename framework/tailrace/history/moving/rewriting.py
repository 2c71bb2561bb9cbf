"""A state under other keys, or with other fields, by a function of the user: ``function(actor, key, state)`` returns the new key.

``state`` has the plain fields by their stored names, as they were stored, without the code that wrote them; the function may change it.
The present code checks it and writes it again. Maps, lists and timers go with their key, as they are. Two keys that become one are
merged by ``merge(actor, key, one, other)`` of the same file, which returns the fields; no entry or timer may be in both.
"""

from __future__ import annotations

import runpy
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from hashlib import sha256
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from tailrace.core import rows
from tailrace.core.counting import counted
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.schema import decode_schemas, encode_schemas
from tailrace.core.errors import UsageError
from tailrace.state.snapshots import Snapshot
from tailrace.state.snapshots.actors import Entry, actor_of


class Rewrite(NamedTuple):
    """The functions of a file, and a digest of it."""

    function: Callable[[str, Any, dict[str, Any]], Any]
    merge: Callable[[str, Any, dict[str, Any], dict[str, Any]], dict[str, Any]] | None
    digest: bytes

    @classmethod
    def of(cls, reference: str, code: Mapping[str, str] | None = None) -> Rewrite:
        """Those of ``FILE.py:function``; ``code``: the parts of the app's, see ``code_digest``. Raises UsageError."""
        file, _, name = reference.rpartition(":")
        found = runpy.run_path(file) if Path(file).is_file() else {}
        if not callable(found.get(name)):
            raise UsageError(f"{reference!r} is no function of a file", hint="Write FILE.py:function.")
        said = repr((name, sorted((code or {}).items()))).encode()
        return cls(found[name], found.get("merge"), sha256(said + Path(file).read_bytes()).digest())


class Rewritten:
    """The rows of an app by other keys. ``counts``: by actor and what happened. ``failed``: a line for each key."""

    def __init__(self, plan: Plan, base: Snapshot, rewrite: Rewrite) -> None:
        self._actors, self._rewrite = {one.name: one for one in plan.actors}, rewrite
        self._rows: dict[bytes, dict[bytes, bytes]] = {}
        self._states: dict[bytes, tuple[Any, dict[str, Any]]] = {}
        self.counts, self.failed = Counter[tuple[str, str]](), list[str]()
        schemas = {one.partition: one.schema for one in base.manifest.tasks}
        for number in (task.partition for task in base.manifest.tasks if task.cut):
            stored = {one: actor_of(schemas, one, "the state") for one in decode_schemas(schemas[number])}
            readers = {
                name: one.decoder([each.name for each in one.plain_fields()], number)
                for name, one in stored.items()
            }
            for prefix, some in groupby(base.rows(number), lambda pair: rows.key_prefix(pair[0])):
                parts, found = rows.read_state_row(prefix), {row[len(prefix) :]: value for row, value in some}
                key = stored[parts.actor].key_codec.decode(parts.key)
                self.counts[parts.actor, "keys"] += 1
                try:
                    values = [Entry(parts.key, "value", None, one) for rest, one in found.items() if not rest]
                    state = dict(readers[parts.actor](values)[0]) if values else {}
                    self._add(parts, key, state, found)
                except Exception as error:  # noqa: BLE001  # the user's function fails for this key
                    self.failed.append(f"{parts.actor} {key!r}: {type(error).__name__}: {error}")

    def _add(self, parts: rows.StateRow, key: Any, state: dict[str, Any], found: dict[bytes, bytes]) -> None:
        actor, name, rewrite = self._actors[parts.actor], parts.actor, self._rewrite
        new = rewrite.function(name, key, state)
        data = actor.key_codec.encode(new)
        place, spread = rows.actor_prefix(name) + rows.escaped(data), rows.spread(found)
        if place in self._rows:
            other, before = self._states[place]
            if rewrite.merge is None:
                raise UsageError(
                    f"it becomes {new!r}, as {other!r} does", hint="Add merge(actor, key, one, other)."
                )
            if len(self._rows[place].keys() & spread.keys()) > 1:
                raise UsageError(
                    f"it becomes {new!r}, as {other!r} does, and both have the same timers or entries"
                )
            state, spread = rewrite.merge(name, new, before, state), {**self._rows[place], **spread}
        if b"" in spread:
            spread[b""] = rows.PLAIN + actor.encode(actor.decode(msgspec.msgpack.encode(state)))
        what = {
            "merged": place in self._rows,
            "with other keys": data != parts.key,
            "with other fields": spread != rows.spread(found),
        }
        self.counts.update((name, one) for one, is_so in what.items() if is_so)
        self._rows[place], self._states[place] = spread, (key, state)

    def __iter__(self) -> Iterator[tuple[bytes, bytes]]:
        """All rows, ascending."""
        for place, found in sorted(self._rows.items()):
            yield from ((place + rest, value) for rest, value in sorted(rows.gathered(found).items()))

    def schema(self, stored: bytes) -> bytes:
        """The schema of the rows, as the present code declares it. Pending timers stay."""
        return encode_schemas(
            {
                name: msgspec.structs.replace(self._actors[name].schema, timers=one.timers)
                for name, one in decode_schemas(stored).items()
            }
        )

    def lines(self) -> Iterator[str]:
        """For a person: the counts of each actor, then the first keys that failed."""
        for name in dict.fromkeys(name for name, _ in self.counts):
            said = [f"{count:,} {what}" for (of, what), count in self.counts.items() if of == name]
            yield f"{name}: {', '.join(said)}"
        if self.failed:
            yield f"{counted(len(self.failed), 'key')} failed, the first: {'; '.join(self.failed[:10])}"
