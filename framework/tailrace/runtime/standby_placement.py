"""Which process keeps a standby of which task: the one to which the group would give the task.

Theory. The consumer group chooses the new owner of a task, not we: librdkafka has no assignor of our own, and with KIP-848 the
broker assigns. A standby helps only in the process that becomes the owner. So the placement *predicts* the group. Both assignors
are sticky: what a living member has stays where it is, and the tasks of a member that is gone are given out one by one, in the order
of their numbers, each to the member that has the fewest by then. With equal numbers the classic assignor takes the least
member id (librdkafka, ``sort_by_map_elem_val_toppar_list_cnt``). The broker's assignor has an order of its own among equals.

    the first standby of a task    is with the member that gets it when its owner is gone
    the second                     is with the member that gets it when the owner and the first are gone
    and so on                      until ``count`` standbys, or until all members have a copy

So with two processes the prediction is always right, and with ``count`` = processes - 1 every process has a copy. All
processes compute the same from the same description of the group. There is no message between them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from heapq import heapify, heapreplace


def placement(members: Mapping[str, Collection[int]], count: int) -> dict[int, list[str]]:
    """By task, the members that are to keep standbys of it, in the order in which they would own it.

    ``members``: by member id, the tasks that it owns.
    """
    found: dict[int, list[str]] = {}
    known: dict[frozenset[str], dict[int, str]] = {}
    for owner, tasks in members.items():
        for task in tasks:
            gone = [owner]
            while len(gone) <= count and len(gone) < len(members):
                who = frozenset(gone)
                if who not in known:
                    known[who] = heirs(members, who)
                gone.append(known[who][task])
            found[task] = gone[1:]
    return found


def heirs(members: Mapping[str, Collection[int]], gone: Collection[str]) -> dict[int, str]:
    """The new owners of the tasks of members that are gone. At least one member must be left."""
    fewest = [(len(tasks), member) for member, tasks in members.items() if member not in gone]
    heapify(fewest)
    found: dict[int, str] = {}
    for task in sorted((task for member in gone for task in members[member]), reverse=True):
        has, member = fewest[0]
        found[task] = member
        heapreplace(fewest, (has + 1, member))
    return found
