"""A world of sales that is restored."""

from __future__ import annotations

from tests.runtime.world import World, run_dry


def sales(first: int, last: int) -> list[tuple[str, int, int]]:
    return [(f"s{number % 5}", 50 * number, number) for number in range(first, last)]


def worked(world: World, first: int, last: int) -> None:
    """One owner takes some sales, commit by commit, and leaves."""
    partition = world.running()
    world.sell(*sales(first, last))
    run_dry(partition, 4)
    partition.revoke()


def made() -> World:
    world = World(commit_interval_ms=0)
    worked(world, 0, 20)
    return world
