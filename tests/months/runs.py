"""Steps by which a service goes on: events, batches, live runs, crashes, upgrades."""

from __future__ import annotations

from random import Random

from tests.months.apps import DISORDER_MS, SHOPS, UNLUCKY, WINDOW_MS, Note, Sale
from tests.months.oracle import Given
from tests.months.service import FIRST_MS, Service

# --- events


def events_of(service: Service) -> list[Given]:
    """Some events: in time, out of order within the bound; and some that are late whatever comes before them."""
    random, world = service.random, service.world
    latest = max([FIRST_MS, world.latest, *(one.event.at for one in service.pending)])
    start = latest + 1
    stretch = random.choice((3_000, 20_000, 60_000))
    found: list[tuple[float, Given]] = []
    for _ in range(random.randint(0, 12)):
        at, shop = start + random.randrange(stretch), random.choice(SHOPS)
        # Where it stands is by its time and some disorder, which is less than the bound.
        found.append((at + random.uniform(0, DISORDER_MS - 1), Given(Sale(shop, at, _amount(random)))))
        if service.version.notes and random.random() < 0.5:
            at = start + random.randrange(stretch)
            note = Note(random.choice(SHOPS), at, random.randint(1, 9))
            found.append((at + random.uniform(0, DISORDER_MS - 1), Given(note)))
    for _ in range(random.choice((0, 0, 1, 2))):
        at = latest - random.randrange(3 * WINDOW_MS)
        shop = random.choice(SHOPS)
        if world.is_past(shop, at):
            sale = Sale(shop, at, random.choice((1, 2, 3)))
            found.append((start + random.randrange(stretch), Given(sale, late=True)))
    return [one for _, one in sorted(found, key=lambda one: one[0])]


def _amount(random: Random) -> int:
    return UNLUCKY if random.random() < 0.1 else random.randint(1, 9)


def appended(service: Service) -> None:
    """Events come, and nobody reads them yet."""
    service.append(events_of(service))


# --- runs


def pace(service: Service) -> tuple[object, ...]:
    """Commits at some interval; now and then several processes."""
    random = service.random
    chosen: tuple[object, ...] = ("--commit-interval", random.choice(("1ms", "20ms", "200ms")))
    most = service.version.partitions
    if most > 1 and random.random() < 0.05:
        chosen += ("--workers", random.randint(2, most))
    return chosen


def batch(service: Service) -> None:
    """Events come, and a bounded run reads them."""
    service.append(events_of(service))
    service.run_to_end(*pace(service))


def live(service: Service) -> None:
    """Events come, and a service reads them until it is asked to stop."""
    service.append(events_of(service))
    service.run_live("--commit-interval", service.random.choice(("1ms", "20ms")))


def upgraded(service: Service) -> None:
    """The next version of the code runs from now on."""
    service.number += 1
    name = service.versions[service.number][0]
    service.said.append(f"version {service.version.number}: {name}")
    service.run_to_end(*pace(service))


def crashed(service: Service) -> None:
    """Events come, the service that reads them dies on the way, and another goes on where it was."""
    service.append(events_of(service))
    ended = service.random.random() < 0.5
    service.crash(service.random.choice((3, 10, 30, 60)), ended, *pace(service))
    if ended:
        service.run_to_end(*pace(service), after_crash=True)
    else:
        service.run_live("--commit-interval", "20ms")


def state_lost(service: Service) -> None:
    """The state folders are gone; a run restores them from the log."""
    service.lose_state()
    service.run_to_end(*pace(service))


def may_upgrade(service: Service) -> bool:
    """Whether there is a next version; what is pending is read before, so that each run has one version."""
    return service.started and not service.pending and service.number + 1 < len(service.versions)
