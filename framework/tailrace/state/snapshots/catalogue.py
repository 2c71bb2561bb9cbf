"""The snapshots of one app in one location: created, published, found, deleted.

::

    <uri>/<app>/<id>/manifest.json      if it exists, there is a snapshot for every reader; if not, there is none
    <uri>/<app>/<id>/*.parquet          its files, and perhaps those of attempts that failed
    <uri>/<app>/<id>/held-by-<app>      retention keeps the snapshot, since the history of that app begins with it
    <uri>/<app>/_.../                   not a snapshot

**Publication.** The manifest is written last, after a check that every file that it names exists and is of
its size. A process that dies before that has published nothing; ``sweep`` removes its files. Once published,
a snapshot never changes.

**Chains.** An incremental snapshot is useless without its parent. Publishing one looks for the parent again
*after* its manifest is written, and withdraws it if the parent is gone. Deleting removes the manifest first,
looks for incremental snapshots *after* that, and restores it if there is one. Each acts before it checks, so
if both happen at the same time, at least one of them sees the other.
"""

from __future__ import annotations

import re
import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime
from typing import TypeAlias

import msgspec

from tailrace.core.errors import (
    AlteredSnapshotError,
    FormatError,
    OptionError,
    SnapshotError,
    UnknownSnapshotError,
    UsageError,
)
from tailrace.core.suggestions import did_you_mean
from tailrace.state.snapshots import manifest as manifests
from tailrace.state.snapshots.manifest import HELD_BY, MANIFEST, Manifest
from tailrace.state.snapshots.places import Place
from tailrace.state.snapshots.reading import Level, Snapshot, linked

LATEST = "latest"

_AHEAD_MS = 3_600_000
"""Maximum difference of clocks."""

_Chain: TypeAlias = list[Level]
_Ids: TypeAlias = list[str]
_Manifests: TypeAlias = list[Manifest]  # `list` means something else inside the class
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")


def which_where(reference: str) -> tuple[str, str]:
    """The location and snapshot of ``URI#snapshot``, split at the last ``#`` (default: the latest)."""
    uri, mark, which = reference.rpartition("#")
    return (uri, which or LATEST) if mark else (reference, LATEST)


class Draft(msgspec.Struct, frozen=True):
    """An unfinished snapshot: its id, the folder for ``write_task``, and its start (ms since 1970)."""

    id: str
    folder_uri: str
    created_ms: int


class Snapshots:
    """The snapshots of an app under a URI. Methods raise SnapshotUnavailableError if the location fails."""

    def __init__(self, uri: str, app: str) -> None:
        if not _NAME.fullmatch(app):
            raise UsageError(f"an app called {app!r} cannot have a folder of snapshots")
        self.app = app
        self._root = Place.at(uri)
        self._place = self._root / app

    @property
    def other_apps(self) -> list[str]:
        """The apps that have snapshots under the same URI."""
        return [one.name for one in self._root.entries() if one.is_folder and one.name != self.app]

    # --- making one ---

    def begin(self, id: str | None = None, created_ms: int | None = None) -> Draft:
        """A new, empty draft. Ids sort by their start, which is in another millisecond than that of any other draft of the process.
        Give a known id to continue its draft.
        """
        now_ms = _another_ms() if created_ms is None else created_ms
        if id is None:
            moment = datetime.fromtimestamp(now_ms / 1000, UTC).strftime("%Y%m%dT%H%M%S")
            own = f"{moment}{now_ms % 1000:03d}-{secrets.token_hex(4)}"
        else:
            own = id
            _must_be_a_name(id, "id")
        folder = self._place / own
        folder.make()
        return Draft(own, folder.uri, now_ms)

    def publish(self, manifest: Manifest) -> Manifest:
        """Publish a draft for all readers at once, and return its manifest, sealed.

        Raises AlteredSnapshotError (a file that it names is missing, or has another size) or SnapshotError
        (it belongs to another app, does not match its parent, or its id or its savepoint's name exists).
        Publishing the same manifest again is allowed: a driver may do so after it was killed.
        """
        self._must_be_ours(manifest)
        sealed = manifests.sealed(manifest)
        place = self._place / sealed.id
        snapshot = linked([*self._parents(sealed), Level(sealed, place)], self.app)
        snapshot.check()
        if sealed.name is not None and any(
            each.name == sealed.name and each.id != sealed.id for each in self.list()
        ):
            raise SnapshotError(
                f"there is already a savepoint named {sealed.name!r}",
                snapshot=sealed.id,
                path=place.shown,
                hint="Choose another name, or delete that savepoint first.",
            )
        place.settle()
        try:
            (place / MANIFEST).write(manifests.encode(sealed), replace=False)
        except FileExistsError:
            if self._read(sealed.id) == sealed:
                return sealed
            raise SnapshotError(
                "another snapshot with this id is already published", snapshot=sealed.id, path=place.shown
            ) from None
        self._place.settle()
        if sealed.parent is not None and self._read(sealed.parent) is None:
            (place / MANIFEST).remove()
            raise self._orphan(sealed.id, sealed.parent)
        return sealed

    # --- finding one ---

    def list(self) -> _Manifests:
        """The manifests of all snapshots, oldest first. Raises AlteredSnapshotError or FormatError.

        A single manifest that cannot be read is an error, since the latest snapshot would be uncertain.
        """
        return _by_age([one for one in map(self._read, self._folders()) if one is not None])

    def id_of(self, which: str) -> str:
        """The id of a snapshot that ``open`` would find. Raises what ``list`` does, and UnknownSnapshotError."""
        return self._named(which).id

    def open(self, which: str = LATEST) -> Snapshot:
        """A snapshot by its id, by a unique prefix of it, by a savepoint's name, or "latest".

        All of its files, and those of the snapshots that it builds on, exist and have their size. Reading
        checks the content. Raises UnknownSnapshotError, AlteredSnapshotError, SnapshotError, FormatError.
        """
        found = self._read(which) if _NAME.fullmatch(which) else None
        manifest = found or self._named(which)
        snapshot = linked([*self._parents(manifest), Level(manifest, self._place / manifest.id)], self.app)
        snapshot.check()
        return snapshot

    # --- taking away ---

    def delete(self, id: str, *, dependants: bool = False) -> _Ids:
        """Delete a snapshot, its manifest first, and return the deleted ids.

        Raises UnknownSnapshotError, or SnapshotError if incremental snapshots build on it. With
        ``dependants`` those are deleted first. Raises AlteredSnapshotError or FormatError if another
        snapshot, which may build on it, cannot be read. After an error nothing has changed.
        """
        place = self._place / id
        if not _NAME.fullmatch(id) or not (place / MANIFEST).exists():
            raise self._unknown(f"there is no snapshot {id!r}", self._folders())
        gone = _Ids()
        for child in self._children(id):
            if not dependants:
                raise self._needed(id, child)
            gone += self.delete(child, dependants=True)
        kept = (place / MANIFEST).read()
        (place / MANIFEST).remove()
        if children := self._children(id):  # published meanwhile
            (place / MANIFEST).write(kept)
            raise self._needed(id, children[0])
        place.remove_folder()
        return [*gone, id]

    def keep(self, count: int) -> _Ids:
        """Delete automatic snapshots except for the newest ``count`` and what others build on.

        Returns the deleted ids. Snapshots from a clock that was ahead count as the oldest; otherwise new ones
        would be deleted at once. A snapshot with which the history of an app begins (``Snapshot.hold``) is
        kept.
        """
        everything = self.list()
        by_id = {each.id: each for each in everything}
        automatic = [each for each in everything if each.automatic and each.name is None]
        wanted = {each.id for each in everything if not each.automatic or each.name is not None}
        latest_ms = time.time_ns() // 1_000_000 + _AHEAD_MS
        by_worth = sorted(automatic, key=lambda each: each.created_ms <= latest_ms)
        wanted |= {each.id for each in by_worth[max(0, len(by_worth) - count) :]}
        wanted |= {each.id for each in automatic if each.id not in wanted and self._is_held(each.id)}
        for each in everything:
            parent = each.parent if each.id in wanted else None
            while parent is not None and parent in by_id:
                wanted.add(parent)
                parent = by_id[parent].parent
        gone = _Ids()
        # a snapshot is newer than those it builds on, and is deleted before them
        for each in reversed(automatic):
            if each.id not in wanted:
                gone += self.delete(each.id)
        return gone

    def sweep(self, older_than_s: float = 86_400.0) -> _Ids:
        """Remove unpublished drafts and files of failed attempts. Returns their names.

        Only files unchanged for ``older_than_s`` are removed, which must be longer than any draft takes.
        """
        before_ms = time.time_ns() // 1_000_000 - int(older_than_s * 1000)
        gone = _Ids()
        for name in self._folders():
            folder = self._place / name
            entries = folder.entries()
            try:
                manifest = self._read(name)
            except (AlteredSnapshotError, FormatError):
                continue  # which files it names is not known
            if manifest is None:
                changed = [each.changed_ms for each in entries if each.changed_ms is not None]
                if max(changed, default=_begun_ms(name)) < before_ms:
                    folder.remove_folder()
                    gone.append(name)
                continue
            named = {MANIFEST, *(file.name for task in manifest.tasks for file in task.files)}
            for each in entries:
                if each.name in named or each.name.startswith(HELD_BY) or each.is_folder:
                    continue
                if (each.changed_ms or 0) < before_ms:
                    (folder / each.name).remove()
                    gone.append(f"{name}/{each.name}")
        return gone

    def _folders(self) -> _Ids:
        return [
            entry.name for entry in self._place.entries() if entry.is_folder and _NAME.fullmatch(entry.name)
        ]

    def _is_held(self, id: str) -> bool:
        return any(each.name.startswith(HELD_BY) for each in (self._place / id).entries())

    def _read(self, id: str) -> Manifest | None:
        """The manifest of a folder; None where there is none."""
        place = self._place / id
        try:
            data = (place / MANIFEST).read()
        except FileNotFoundError:
            return None
        manifest = manifests.decode(data, id, place.shown)
        if manifest.id != id:
            raise AlteredSnapshotError(
                f"the folder holds snapshot {manifest.id!r}",
                snapshot=id,
                path=place.shown,
                hint="Rename the folder to the id of its snapshot.",
            )
        return manifest

    def _named(self, which: str) -> Manifest:
        everything = self.list()
        ids = [_id_and_name(each) for each in everything]
        if which == LATEST:
            if not everything:
                raise self._unknown("there is no snapshot yet", ids, did_you_mean(self.app, self.other_apps))
            return everything[-1]
        found = [each for each in everything if each.name == which]
        found = found or [each for each in everything if which and each.id.startswith(which)]
        if len(found) == 1:
            return found[0]
        if found:
            raise self._unknown(
                f"{which!r} may mean any of {len(found)} snapshots", [_id_and_name(each) for each in found]
            )
        names = [each.name for each in everything if each.name is not None]
        raise self._unknown(f"there is no snapshot {which!r}", ids, did_you_mean(which, names))

    def _parents(self, manifest: Manifest) -> _Chain:
        """The snapshots that an incremental one builds on, the full one first."""
        chain = _Chain()
        child = manifest
        while child.kind == "incremental":
            parent = None if child.parent is None else self._read(child.parent)
            if parent is None:
                raise self._orphan(child.id, child.parent)
            if parent.partitions != child.partitions or parent.id in {
                child.id,
                *(one.manifest.id for one in chain),
            }:
                raise SnapshotError(
                    f"it cannot build on {parent.id!r}, which has {parent.partitions} partitions, not "
                    f"{child.partitions}",
                    snapshot=child.id,
                    path=(self._place / child.id).shown,
                    hint="Take a full snapshot.",
                )
            chain.insert(0, Level(parent, self._place / parent.id))
            child = parent
        return chain

    def _children(self, id: str) -> _Ids:
        """The ids of the snapshots that build on one. Raises if a manifest, which may, cannot be read."""
        others = [self._read(name) for name in self._folders() if name != id]
        return [one.id for one in others if one is not None and one.parent == id]

    # --- refusals ---

    def _must_be_ours(self, manifest: Manifest) -> None:
        _must_be_a_name(manifest.id, "id")
        if manifest.name is not None:
            _must_be_a_name(manifest.name, "name")
        if manifest.app != self.app:
            raise SnapshotError(
                f"a snapshot of app {manifest.app!r} cannot be published among those of {self.app!r}",
                snapshot=manifest.id,
                path=self._place.shown,
            )
        if (manifest.kind == "incremental") is (manifest.parent is None):
            raise UsageError("an incremental snapshot names its parent, and a full one has none")
        partitions = [task.partition for task in manifest.tasks]
        if partitions != list(range(manifest.partitions)):
            raise UsageError(
                f"a snapshot of {manifest.partitions} partitions has a task for each, in order; not "
                f"{partitions}"
            )

    def _unknown(self, what: str, ids: Iterable[str], meant: str = "") -> UnknownSnapshotError:
        near = ", ".join(list(ids)[-5:])
        hint = (
            f"Use one of the existing snapshots: {near}."
            if near
            else "Correct the location, or take a snapshot (tailrace snapshot create)."
        )
        return UnknownSnapshotError(what, path=self._place.shown, hint=f"{meant} {hint}".lstrip())

    def _needed(self, id: str, child: str) -> SnapshotError:
        return SnapshotError(
            f"the incremental snapshot {child!r} builds on it",
            snapshot=id,
            path=(self._place / id).shown,
            hint="Delete that one first, or delete all that build on it, too (--dependants).",
        )

    def _orphan(self, id: str, parent: str | None) -> AlteredSnapshotError:
        return AlteredSnapshotError(
            f"the snapshot {parent!r}, which it builds on, is missing",
            snapshot=id,
            path=(self._place / id).shown,
            hint="Use another snapshot, or take a full one.",
        )


def _by_age(found: list[Manifest]) -> list[Manifest]:
    """Oldest first. An incremental snapshot sorts after its parent, whatever clocks they were created by."""
    by_id = {each.id: each for each in found}

    def age(manifest: Manifest) -> tuple[int, int, str]:
        created_ms, depth, parent = manifest.created_ms, 0, manifest.parent
        # a ring, which nobody publishes, must not hang the look
        while parent in by_id and depth < len(found):
            created_ms, depth = max(created_ms, by_id[parent].created_ms), depth + 1
            parent = by_id[parent].parent
        return created_ms, depth, manifest.id

    return sorted(found, key=age)


_began_ms = [0]


def _another_ms() -> int:
    """The time, later than at the call before."""
    _began_ms[0] = max(time.time_ns() // 1_000_000, _began_ms[0] + 1)
    return _began_ms[0]


def _id_and_name(manifest: Manifest) -> str:
    return manifest.id if manifest.name is None else f"{manifest.id} ({manifest.name})"


def _must_be_a_name(text: str, what: str) -> None:
    if not _NAME.fullmatch(text) or text == LATEST:
        raise OptionError(
            f"{text!r} cannot be the {what} of a snapshot",
            hint="Use letters, digits, dots, dashes and underlines, beginning with a letter or digit.",
        )


def _begun_ms(id: str) -> int:
    """When a draft with an id of ours was begun; for another, long ago."""
    try:
        return int(datetime.strptime(id[:15], "%Y%m%dT%H%M%S").replace(tzinfo=UTC).timestamp() * 1000)
    except ValueError:
        return 0
