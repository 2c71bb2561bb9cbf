"""Dead letters that are handled in a snapshot: starting from it settles them, so they are not redriven.

Theory. A rebuild in canonical order handles failed records in their original place, and its snapshot names
them (``TaskEntry.handled``). They stay in the app's dead letters until the app is started from the snapshot:
then the commit that starts a task notes their letters in ``<app>.redriven``, as a redrive would.

If an upgrade began with the snapshot, and is rolled back, the state is again one that has not handled them: their notes are
deleted, in the commit that ends the running version (``reopen_letters``), and they wait again.

They may be redriven between the rebuild and the start. If a task that starts from the snapshot would still
read the redriven record, it would handle it a second time: the snapshot is refused.
"""

from __future__ import annotations

import msgspec

from tailrace.core.engine import tape
from tailrace.core.engine.redriven import redriven_ids
from tailrace.core.errors import SnapshotMismatchError
from tailrace.core.names import dead_letters_of, redriven_of
from tailrace.core.records import Output
from tailrace.history.dead_letters.letters import Note, dead_letters, letters_note, notes
from tailrace.history.reading.beginnings import handled_in
from tailrace.history.reading.stretches import scan
from tailrace.log.interface import Log, TopicSettings, Writer
from tailrace.state.snapshots import Manifest, TaskEntry


def check_not_redriven_since(log: Log, manifest: Manifest) -> None:
    """Refuse a snapshot with handled records that were redriven since, if it would read them again.
    Raises SnapshotMismatchError: there is such a record.
    """
    handled = {one.partition: handled_in(one) for one in manifest.tasks}
    if not any(handled.values()) or dead_letters_of(manifest.app) not in log.topics():
        return
    asked: dict[tuple[str, int], dict[str, Note]] = {}
    for id_, note in notes(log, manifest.app).items():
        if note.origin is not None and (note.topic, note.origin[1]) in handled.get(note.origin[0], ()):
            asked.setdefault((note.topic, note.partition), {})[id_] = note
    for (name, number), found in asked.items():
        cut = next((one.cut for one in manifest.tasks if one.partition == number and one.cut), b"")
        position = tape.decode_cut(cut).positions.get(name, 0) if cut else 0
        start = max(position, min(one.start for one in found.values()))
        for record in scan(log, name, number, start) if number >= 0 else ():
            named = redriven_ids(record.headers, dead_letters_of(manifest.app)) if record.headers else ()
            if any(id_ in found and record.offset >= found[id_].start for id_ in named):
                raise SnapshotMismatchError(
                    f"offset {record.offset} of {name!r} partition {number} is a redriven record, and the "
                    f"snapshot {manifest.id} has handled its original: it would be handled twice",
                    hint="Rebuild again: what was redriven since is then left to its redriven record.",
                )


def settle_letters(log: Log, writer: Writer, app: str, entry: TaskEntry, snapshot: str, now_ms: int) -> None:
    """Append notes to the open transaction: letters of records that the state has handled need no redrive."""
    handled = handled_in(entry)
    if not handled or dead_letters_of(app) not in log.topics():
        return
    log.create_topic(redriven_of(app), TopicSettings(1, compacted=True))
    done, of = notes(log, app), letters_note(log, app)
    for letter in dead_letters(log, app):
        place = (letter.topic or "", letter.origin_offset if letter.origin_offset is not None else -1)
        if letter.origin_partition == entry.partition and place in handled and letter.id not in done:
            origin = entry.partition, place[1]
            note = Note(place[0], origin=origin, snapshot=snapshot, letters=of)
            writer.append([Output(redriven_of(app), letter.id.encode(), msgspec.json.encode(note), now_ms)])


def reopen_letters(log: Log, writer: Writer, app: str, snapshot: str, now_ms: int) -> int:
    """Append to the open transaction that the letters wait again that a start from this snapshot has settled. Returns their number."""
    found = [id_ for id_, note in notes(log, app).items() if note.snapshot == snapshot]
    writer.append([Output(redriven_of(app), id_.encode(), None, now_ms) for id_ in found])
    return len(found)
