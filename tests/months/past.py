"""Steps that look back: replays, snapshots, rebuilds, dead letters, archives, retention."""

from __future__ import annotations

from contextlib import closing

from tests.months import reading
from tests.months.oracle import Dropped, Replaced, Run, Undecided, Under, world_after
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
    service.done("compare", service.app, service.folder / "state", service.log, on_log=False)
    with closing(reading.open_log(service.log)) as log:
        log.verify()


# --- snapshots


def snapshot_taken(service: Service) -> None:
    """A snapshot holds what the service has."""
    place = str(service.folder / "snapshots")
    service.done("snapshot", "create", service.app, "--at", place)
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


def rebuild(service: Service, *options: object) -> str:
    """A rebuild along the tape; where its snapshot is."""
    place = str(service.folder / f"rebuilt-{len(service.history)}")
    if service.deleted:
        service.done("archive", service.log, "--to", service.folder / "archive", on_log=False)
        options = (*options, "--archive", service.folder / "archive")
    splits = service.random.choice((1, 1, 2))
    service.done("rebuild", service.app, "--to", place, "--processes", 1, "--split", splits, *options)
    return place


def rebuilt(service: Service) -> None:
    """The state from the log alone, under the code that there is now."""
    place = rebuild(service)
    if service.one_version:
        service.done("compare", service.app, service.log, place, on_log=False)
    service.check_snapshot(place, Under(service.version))


def retried(service: Service) -> None:
    """What had failed is run again where it had failed, and the service goes on from that."""
    under = Under(service.version, retry=True)
    place = rebuild(service, "--retry-failed", "--on-error", "dead-letter")
    service.check_snapshot(place, under)
    _replace(service, place, under)


def replaced(service: Service) -> None:
    """The service goes on from what it would be had it always run the code that it runs now."""
    place = rebuild(service)
    _replace(service, place, Under(service.version))


def _replace(service: Service, place: str, under: Under) -> None:
    service.history.append(Replaced(under))
    service.snapshots = ""
    service.run_to_end("--from-snapshot", place, "--replace-state")


def may_rebuild(service: Service) -> bool:
    """Whether the oracle knows what a rebuild comes to."""
    return at_rest(service) and _is_known(service, Under(service.version))


def may_retry(service: Service) -> bool:
    """Whether something had failed that a corrected handler can handle."""
    if not at_rest(service) or service.version.faulty or not service.world.failed:
        return False
    return _is_known(service, Under(service.version, retry=True))


def _is_known(service: Service, under: Under) -> bool:
    runs = [one for one in service.history if isinstance(one, Run)]
    if len(runs) < len([one for one in service.history if not isinstance(one, Dropped)]):
        return False  # it was replaced already
    if any(
        (one.version.factor, one.version.sends) != (under.version.factor, under.version.sends) for one in runs
    ):
        return False  # what was sent under the old code is not what the new code sends
    try:
        world_after(service.history, under.version.partitions, under)
    except Undecided:
        return False
    return True


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
    service.done("log", "clean")


def deleted(service: Service) -> None:
    """The beginning is archived, and then deleted from the log."""
    service.done("archive", service.log, "--to", service.folder / "archive", on_log=False)
    service.done("log", "retain", "sales", "--retention", "1h")
    service.done("log", "clean")
    service.done("log", "retain", "sales", "--for-ever")
    service.deleted = True
