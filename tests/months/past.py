"""Steps that look back: replays, snapshots, rebuilds, dead letters, archives, retention."""

from __future__ import annotations

from contextlib import closing
from typing import NamedTuple

from tailrace.log.embedded import EmbeddedLog
from tests.history.differences import from_the_log
from tests.months import reading
from tests.months.apps import Sale
from tests.months.oracle import Dropped, Replaced, Undecided, Under
from tests.months.runs import events_of
from tests.months.service import Service


def at_rest(service: Service) -> bool:
    """Whether it has run, and there is nothing that it has not read."""
    return service.started and not service.pending


# --- the same again


def replayed(service: Service) -> None:
    """All of it again, compared byte by byte with the state folders, the changelog and the outputs."""
    service.done("replay", service.app, "--compare", "--state", service.folder / "state")


def may_replay(service: Service) -> bool:
    """Whether a replay comes to the same: nothing but this version has run, and the log has it all."""
    return service.started and service.one_version and not service.deleted


def compared(service: Service) -> None:
    """State folders and changelog hold the same, and the log has all its checksums."""
    assert from_the_log(service.app, service.log, folder=service.folder / "state") == []
    with closing(reading.open_log(service.log)) as log:
        log.verify()


# --- snapshots


def snapshot_taken(service: Service) -> None:
    """A snapshot holds what the service has."""
    place = str(service.folder / "snapshots")
    service.done("snapshot", "create", service.app, "--snapshots", place)
    wanted = service.world.state(service.version)
    assert reading.rebuilt(place, service.plan, service.version) == wanted
    service.snapshots = place


def started_from_snapshot(service: Service) -> None:
    """An empty state folder is filled from a snapshot, and the rest from the log."""
    service.lose_state()
    service.run_to_end("--from-snapshot", service.snapshots)


def has_snapshot(service: Service) -> bool:
    """Whether there is one of the history that the service has."""
    return at_rest(service) and bool(service.snapshots)


# --- rebuilds


class Rebuilt(NamedTuple):
    """A rebuild: where its snapshot is, and how history was run again."""

    place: str
    under: Under
    at: int


def rebuild(service: Service, *options: object) -> Rebuilt:
    """A rebuild under the code that there is now. It says itself in which order it was done.

    Its state must be what the oracle says, which knows nothing of some rebuilds under changed code.
    """
    service.rebuilds += 1
    place = f"{service.folder}/rebuilt-{service.rebuilds}"
    if service.deleted:
        service.done("archive", "--log", service.log, "--to", service.folder / "archive", on_log=False)
        options = (*options, "--archive", service.folder / "archive")
    command = ("rebuild", service.app, "--to", place, "--workers", 1, "--json", *options)
    made = service.call(*command)
    if (
        "Rebuild with --order canonical" in made.err
    ):  # this code sends other messages than those that are recorded
        assert not service.one_version
        made = service.done(*command, "--order", "canonical", "--on-error", "dead-letter")
    assert made.code == 0, f"exit code {made.code}: {made.out}{made.err}"
    (report,) = made.lines
    canonical = report["order"] == "canonical"
    under = Under(service.version, canonical=canonical)
    try:
        service.check_snapshot(place, under)
    except Undecided:
        pass
    return Rebuilt(place, under, len(service.history))


def rebuilt(service: Service) -> None:
    """The state from the log alone."""
    made = rebuild(service)
    if service.one_version:
        assert from_the_log(service.app, service.log, snapshot=made.place) == []


def rebuilt_canonically(service: Service) -> None:
    """The same in canonical order: what is late, and which windows are open, is up to the events."""
    rebuild(service, "--order", "canonical", "--on-error", "dead-letter")


def replaced(service: Service) -> None:
    """The service goes on from what it would be had it always run the code that it runs now.

    If it has moved on since the rebuild, that may be refused, and then nothing has changed.
    """
    made = rebuild(service)
    moved = service.random.random() < 0.5
    if moved:
        service.run_to_end()
    _replace(service, made, moved=moved)


def _replace(service: Service, made: Rebuilt, *, moved: bool = False) -> None:
    if service.one_version and not made.under.canonical:
        # The snapshot is of the service's own history: the service stays where it is.
        service.run_to_end("--from-snapshot", made.place, "--replace-state")
        return
    before = list(service.history)
    service.history.append(Replaced(made.under, made.at))
    try:
        service.world  # the oracle may not know it
    except Undecided:
        service.history = before
        return
    options = ("--from-snapshot", made.place, "--replace-state")
    if moved or made.under.canonical:
        # Canonical order knows no end of a run but the last: it may have timers pending that an earlier one has fired.
        ended = service.run("--until-end", *options)
        if ended.code == 1:
            service.history = before
            return
    service.snapshots = ""
    if made.under.canonical and not made.under.version.faulty:
        service.done("dead-letters", "drop", "months", "--all")  # they are handled in their places
    service.run_to_end(*options)  # a second time it does nothing more


def replaced_too_late(service: Service) -> None:
    """A rebuild stands where a live run came to rest. Then inputs end: timers fire, and no position changes."""
    service.append(events_of(service))
    if service.random.random() < 0.5:
        service.crash(service.random.choice((10, 30)), False, "--commit-interval", "20ms")
    service.run_live("--commit-interval", "20ms")
    made = rebuild(service)
    service.run_to_end(ends=True)
    _replace(service, made, moved=True)


def may_replace_too_late(service: Service) -> bool:
    """Whether a rebuild under the code of now may give another state than the service has."""
    return may_rebuild(service) and not service.one_version


def may_rebuild(service: Service) -> bool:
    """Whether the oracle knows what a rebuild comes to."""
    was_replaced = any(isinstance(one, Replaced) for one in service.history)
    return at_rest(service) and not was_replaced


# --- dead letters


def redriven(service: Service) -> None:
    """What has failed comes again, and is handled as late, or fails again."""
    service.redrive()


def may_redrive(service: Service) -> bool:
    """Whether there is something to redrive."""
    return at_rest(service) and bool(service.world.failed)


# --- what is deleted


def dropped(service: Service) -> None:
    """A field that nothing declares is deleted."""
    service.history.append(Dropped())
    service.run_to_end("--drop-state", "Shop.extra")


def may_drop(service: Service) -> bool:
    """Whether there is such a field."""
    return at_rest(service) and not service.version.extra


def cleaned(service: Service) -> None:
    """The log is cleaned; nothing is past its retention."""
    with closing(EmbeddedLog(service.log)) as log:
        log.clean()


def deleted(service: Service) -> None:
    """The beginning is archived, and then deleted from the log."""
    service.done("archive", "--log", service.log, "--to", service.folder / "archive", on_log=False)
    with closing(EmbeddedLog(service.log)) as log:
        log.set_retention("sales", retention_ms=3_600_000, retention_bytes=None)
        log.clean()
        log.set_retention("sales", retention_ms=None, retention_bytes=None)
    service.deleted = True


def unread_deleted(service: Service) -> None:
    """Events go before they were read: the next run says so, whether it goes on or not."""
    service.append(events_of(service))
    if not service.pending:
        return
    with closing(EmbeddedLog(service.log)) as log:
        log.set_retention("sales", retention_ms=3_600_000, retention_bytes=None)
        log.clean()
    ended = service.run("--until-end")
    lost = any(isinstance(one.event, Sale) for one in service.pending)
    assert ("sales" in ended.err) == lost, f"exit code {ended.code}: {ended.err}"
    service.over = True
