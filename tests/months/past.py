"""Steps that look back: replays, snapshots, rebuilds, dead letters, archives, retention."""

from __future__ import annotations

from contextlib import closing

from tests.months import reading
from tests.months.apps import Sale, Version
from tests.months.findings import OLD_MESSAGES, OPEN, TIMERS_SINCE, UNREAD_DELETED
from tests.months.oracle import Dropped, Replaced, Run, Undecided, Under, canonical_shops, world_after
from tests.months.runs import events_of
from tests.months.service import Service, assert_no_differences, different_states


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
    """A rebuild; where its snapshot is. Empty if it says that it cannot, as what was sent under other code is not known."""
    place = f"{service.folder}/rebuilt-{len(list(service.folder.glob('rebuilt-*')))}"
    if service.deleted:
        service.done("archive", service.log, "--to", service.folder / "archive", on_log=False)
        options = (*options, "--archive", service.folder / "archive")
    made = service.call("rebuild", service.app, "--to", place, "--processes", 1, *options)
    if made.code == 1 and not all(_sends_alike(one.version, service.version) for one in runs_of(service)):
        service.counts["rebuilds refused"] += 1
        return ""
    assert made.code == 0, made.err
    return place


def rebuilt(service: Service) -> None:
    """The state from the log alone, under the code that there is now."""
    place = rebuild(service, "--split", service.random.choice((1, 2)))
    if not place:
        return
    if service.one_version:
        service.done("compare", service.app, service.log, place, on_log=False)
    service.check_snapshot(place, Under(service.version))


def retried(service: Service) -> None:
    """What had failed is run again where it had failed, and the service goes on from that."""
    under = Under(service.version, retry=True)
    if place := rebuild(service, "--retry-failed", "--on-error", "dead-letter"):
        service.check_snapshot(place, under)
        _replace(service, place, under)


def replaced(service: Service) -> None:
    """The service goes on from what it would be had it always run the code that it runs now."""
    if place := rebuild(service):
        if TIMERS_SINCE not in OPEN and service.random.random() < 0.5:
            service.run_to_end()
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
    if any(isinstance(one, Replaced) for one in service.history):
        return False
    if OLD_MESSAGES in OPEN and not all(_sends_alike(one.version, under.version) for one in runs_of(service)):
        return False
    try:
        world_after(service.history, under.version.partitions, under)
    except Undecided:
        return False
    return True


def _sends_alike(one: Version, other: Version) -> bool:
    return (one.factor, one.sends) == (other.factor, other.sends)


def runs_of(service: Service) -> list[Run]:
    """What it has read."""
    return [one for one in service.history if isinstance(one, Run)]


def rebuilt_canonically(service: Service) -> None:
    """The shops from the log alone, in canonical order: what is late, and which windows are open, is up to the events."""
    place = rebuild(service, "--order", "canonical", "--on-error", "dead-letter")
    if not place:
        return
    found = reading.rebuilt(place, service.plan, service.version)
    shops = {key: fields for key, fields in found.items() if key[0] == "Shop"}
    wanted = canonical_shops(service.history, service.version.partitions, service.version)
    assert_no_differences(different_states(wanted, shops), place)


def may_rebuild_canonically(service: Service) -> bool:
    """Whether the oracle knows what comes of it."""
    try:
        canonical_shops(service.history, service.version.partitions, service.version)
    except Undecided:
        return False
    return at_rest(service)


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


def unread_deleted(service: Service) -> None:
    """Events go before they were read: the next run says so, and does not go on."""
    service.append(events_of(service))
    if not service.pending:
        return
    service.done("log", "retain", "sales", "--retention", "1h")
    service.done("log", "clean")
    ended = service.run("--until-end")
    lost = any(isinstance(one.event, Sale) for one in service.pending)
    assert (ended.code == 1 and "'sales'" in ended.err) == lost, f"exit code {ended.code}: {ended.err}"
    service.over = True


def may_lose(_: Service) -> bool:
    """Whether that is so already."""
    return UNREAD_DELETED not in OPEN
