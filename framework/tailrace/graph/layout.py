"""Where the nodes of a graph go in a picture, from left to right.

The usual four steps for layered graphs (Sugiyama, Tagawa and Toda, 1981): edges that close a cycle are turned around;
each node goes one column right of the last that leads to it; an edge over several columns gets a waypoint in each; and
within the columns the order is improved by going to the middle of one's neighbours, back and forth, while the number of
crossings falls. Then heights are settled the same way, with the gap between neighbours kept.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import NamedTuple

_SWEEPS = 12


class Box(NamedTuple):
    """A place: the left upper corner, and the size."""

    x: float
    y: float
    width: float
    height: float


class Laid(NamedTuple):
    """Boxes by node, the points each edge passes through between its ends, and the size of it all."""

    boxes: dict[str, Box]
    ways: dict[tuple[str, str], list[tuple[float, float]]]
    width: float
    height: float


def lay_out(
    sizes: Mapping[str, tuple[float, float]],
    edges: Iterable[tuple[str, str]],
    *,
    column_gap: float = 90,
    gap: float = 22,
) -> Laid:
    """Lay nodes of given width and height out. The result depends on the order of ``sizes`` and ``edges`` alone."""
    pairs = list(dict.fromkeys((a, b) for a, b in edges if a != b))
    forward = _acyclic(list(sizes), pairs)
    ranks = _ranks(list(sizes), forward)
    columns: list[list[str]] = [[] for _ in range(max(ranks.values(), default=-1) + 1)]
    for node in sizes:
        columns[ranks[node]].append(node)
    chains = _waypoints(forward, ranks, columns)
    links = [link for chain in chains.values() for link in pairwise(chain)]
    _order(columns, links)
    heights = {name: sizes[name][1] if name in sizes else 0.0 for column in columns for name in column}
    tops = _heights(columns, links, heights, gap)
    boxes: dict[str, Box] = {}
    points: dict[str, tuple[float, float]] = {}
    x = 0.0
    for column in columns:
        width = max((sizes[name][0] for name in column if name in sizes), default=0.0)
        for name in column:
            if name in sizes:
                own, height = sizes[name]
                boxes[name] = Box(x + (width - own) / 2, tops[name], own, height)
            else:
                points[name] = (x, tops[name])
                points[f"{name}>"] = (x + width, tops[name])
        x += width + column_gap
    ways: dict[tuple[str, str], list[tuple[float, float]]] = {}
    turned = set(pairs) - set(forward)
    for (a, b), chain in chains.items():
        way = [point for name in chain[1:-1] for point in (points[name], points[f"{name}>"])]
        ways[a, b] = way
        if (b, a) in turned:
            ways[b, a] = way[::-1]
    height = max((box.y + box.height for box in boxes.values()), default=0.0)
    return Laid(boxes, ways, max(0.0, x - column_gap), height)


def _acyclic(nodes: Sequence[str], pairs: list[tuple[str, str]]) -> list[tuple[str, str]]:
    """The edges, those turned around that lead back to where a walk came from."""
    after: dict[str, list[str]] = {node: [] for node in nodes}
    entered = set[str]()
    for a, b in pairs:
        after[a].append(b)
        entered.add(b)
    done, walking = set[str](), dict[str, int]()
    back: set[tuple[str, str]] = set()
    # Sources first: then it is the edge against the flow that is turned.
    for root in sorted(nodes, key=lambda node: node in entered):
        if root in done:
            continue
        walking[root] = 0
        while walking:
            node, at = walking.popitem()
            if at == len(after[node]):
                done.add(node)
                continue
            walking[node] = at + 1
            following = after[node][at]
            if following in walking:
                back.add((node, following))
            elif following not in done:
                walking[following] = 0
    return list(dict.fromkeys((b, a) if (a, b) in back else (a, b) for a, b in pairs))


def _ranks(nodes: Sequence[str], edges: list[tuple[str, str]]) -> dict[str, int]:
    """The column of each node: one right of the last before it, and sources as far right as they can be."""
    ranks = dict.fromkeys(nodes, 0)
    for _ in nodes:
        moved = False
        for a, b in edges:
            if ranks[b] <= ranks[a]:
                ranks[b], moved = ranks[a] + 1, True
        if not moved:
            break
    entered = {b for _, b in edges}
    for node in nodes:
        following = [ranks[b] for a, b in edges if a == node]
        if node not in entered and following:
            ranks[node] = min(following) - 1
    return ranks


def _waypoints(
    edges: list[tuple[str, str]], ranks: dict[str, int], columns: list[list[str]]
) -> dict[tuple[str, str], list[str]]:
    chains: dict[tuple[str, str], list[str]] = {}
    for number, (a, b) in enumerate(edges):
        chain = [a]
        for rank in range(ranks[a] + 1, ranks[b]):
            name = f"\0{number}.{rank}"
            columns[rank].append(name)
            chain.append(name)
        chains[a, b] = [*chain, b]
    return chains


def _order(columns: list[list[str]], links: list[tuple[str, str]]) -> None:
    """Reorder the columns in place so that fewer links cross."""
    left: dict[str, list[str]] = {}
    right: dict[str, list[str]] = {}
    for a, b in links:
        right.setdefault(a, []).append(b)
        left.setdefault(b, []).append(a)
    best, fewest = [list(column) for column in columns], _crossings(columns, right)
    for sweep in range(_SWEEPS):
        forward = sweep % 2 == 0
        for column in columns[1:] if forward else columns[-2::-1]:
            near = left if forward else right
            at = {name: place for other in columns for place, name in enumerate(other)}
            column.sort(key=lambda name: _mean([at[one] for one in near.get(name, ())], at[name]))
        crossings = _crossings(columns, right)
        if crossings < fewest:
            best, fewest = [list(column) for column in columns], crossings
    columns[:] = best


def _crossings(columns: list[list[str]], right: dict[str, list[str]]) -> int:
    at = {name: place for column in columns for place, name in enumerate(column)}
    count = 0
    for column in columns:
        ends = [(place, at[one]) for place, name in enumerate(column) for one in right.get(name, ())]
        count += sum((a - c) * (b - d) < 0 for i, (a, b) in enumerate(ends) for c, d in ends[i + 1 :])
    return count


def _heights(
    columns: list[list[str]], links: list[tuple[str, str]], heights: dict[str, float], gap: float
) -> dict[str, float]:
    """The top of each node: near the middle of its neighbours, in the column's order, with gaps kept."""
    near: dict[str, list[str]] = {}
    for a, b in links:
        near.setdefault(a, []).append(b)
        near.setdefault(b, []).append(a)
    tops: dict[str, float] = {}
    for column in columns:
        y = 0.0
        for name in column:
            tops[name] = y
            y += heights[name] + gap
    for sweep in range(_SWEEPS):
        for column in columns if sweep % 2 == 0 else columns[::-1]:
            middle = {name: tops[name] + heights[name] / 2 for name in tops}
            wished = [
                _mean([middle[one] for one in near.get(name, ())], middle[name]) - heights[name] / 2
                for name in column
            ]
            places = _spread(wished, [heights[name] + gap for name in column])
            tops.update(zip(column, places, strict=True))
    lowest = min(tops.values(), default=0.0)
    return {name: top - lowest for name, top in tops.items()}


def _spread(wished: list[float], sizes: list[float]) -> list[float]:
    """The places nearest to the wished ones, in squares, with each behind the one before by at least its size.

    Neighbours that would overlap are joined into a block at the mean of their wishes (pool adjacent violators).
    """
    blocks: list[tuple[float, int]] = []  # the sum of the wishes for the block's begin, and how many they are
    before = 0.0
    offsets: list[float] = []
    for wish, size in zip(wished, sizes, strict=True):
        offsets.append(before)
        total, count = wish - before, 1
        while blocks and blocks[-1][0] / blocks[-1][1] > total / count:
            other, more = blocks.pop()
            total, count = total + other, count + more
        blocks.append((total, count))
        before += size
    begins = [total / count for total, count in blocks for _ in range(count)]
    return [begin + offset for begin, offset in zip(begins, offsets, strict=True)]


def _mean(numbers: Sequence[float], default: float) -> float:
    return sum(numbers) / len(numbers) if numbers else default
