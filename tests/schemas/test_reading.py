"""What is compatible is what decodes: verdicts on random types against msgspec itself."""

from __future__ import annotations

import re
from datetime import UTC, date, datetime
from random import Random
from typing import Annotated, Any, Literal

import msgspec
import pytest
from msgspec import Meta

from tailrace.core.declare.event_codec import EventCodec
from tailrace.core.errors import TailraceError
from tailrace.core.values.type_schemas import describe_event
from tailrace.core.values.types import CODEC_ERRORS
from tailrace.schemas.reading import misreads
from tests.schemas.random_types import Planned, built, changed, planned, struct, values

ZONED = Annotated[datetime, Meta(tz=True)]
NAIVE = Annotated[datetime, Meta(tz=False)]
LOCAL = datetime(2020, 1, 1, tzinfo=UTC).replace(tzinfo=None)
PAIRS = 4
"""Pairs of types for each seed."""
FORMATS = ("json", "msgpack")
REFUSED = re.compile(
    r"is a dict, which|^(date|time|datetime|timedelta|UUID|Decimal|bytes)\b.* is not always .*\bstr\("
)
"""Where a verdict may be stricter than msgspec; see the module's head."""


def pair(seed: int) -> tuple[Planned, Planned] | None:
    rng = Random(seed)
    one = struct(rng, 2, tag=rng.choice((None, "red")))
    other = one
    for _ in range(rng.randint(1, 3)):
        other = changed(rng, other) if rng.random() < 0.95 else planned(rng)
    try:
        for each in (one, other):
            msgspec.json.Decoder(built(each))
    except (TypeError, ValueError, IndexError):
        return None  # msgspec has no such type
    return one, other


def records(one: Planned, codec: EventCodec) -> list[bytes]:
    """The records of the values that are values of the type: those that it decodes itself."""
    found: list[bytes] = []
    for value in values(one):
        try:
            written = codec.encode(value)
        except (*CODEC_ERRORS, TailraceError):
            continue
        if decodes(codec, written):
            found.append(written)
    return found


def decodes(codec: EventCodec, record: bytes) -> bool:
    try:
        codec.decode(record)
    except CODEC_ERRORS:
        return False
    return True


def test_a_type_reads_another_one_if_and_only_if_all_its_values_decode(seeds: range) -> None:
    verdicts = {True: 0, False: 0}
    for seed in (PAIRS * one + at for one in seeds for at in range(PAIRS)):
        found = pair(seed)
        if found is None:
            continue
        for written_as in FORMATS:
            codecs = [EventCodec("topic", one.type, written_as) for one in found]
            for written, read in ((0, 1), (1, 0)):
                types = (describe_event(found[at].type) for at in (written, read))
                lost = misreads(*types, json=written_as == "json")
                if lost and all(REFUSED.search(one.why) for one in lost):
                    continue
                failed = [
                    one for one in records(found[written], codecs[written]) if not decodes(codecs[read], one)
                ]
                assert bool(lost) == bool(failed), f"seed {seed}, {written_as}: {lost} {failed}"
                verdicts[not lost] += 1
    assert all(verdicts.values()), verdicts


@pytest.mark.parametrize(
    ("written", "value", "read", "formats"),
    [
        (dict[int, int], {1: 2}, dict[str, int], ("json",)),
        (dict[int, int], {1: 2}, dict[int | str, int], FORMATS),
        (dict[float, int], {1.5: 2}, dict[str, int], ("json",)),
        (dict[int, int], {1: 2}, dict[float, int], FORMATS),
        (dict[date, int], {date(2020, 1, 1): 2}, dict[str, int], FORMATS),
        (bytes, b"abc", str, ("json",)),
        (datetime, datetime(2020, 1, 1, tzinfo=UTC), str, ("json",)),
        (ZONED, datetime(2020, 1, 1, tzinfo=UTC), NAIVE, ()),
        (NAIVE, LOCAL, NAIVE | None, FORMATS),
        (NAIVE, LOCAL, str, FORMATS),
        (tuple[int, int], (1, 1), Annotated[set[int], Meta(min_length=2)], ("msgpack",)),
        (Annotated[float, Meta(ge=0)], 0.0, Annotated[float, Meta(gt=0)], ()),
        (Annotated[float, Meta(gt=0)], 0.5, Annotated[float, Meta(gt=0)], FORMATS),
        (Annotated[float, Meta(gt=0)], 0.5, Annotated[float, Meta(ge=0)], FORMATS),
        (Annotated[int, Meta(gt=0)], 1, Annotated[int, Meta(ge=1)], FORMATS),
        (int, 7, Literal[1] | int, FORMATS),
        (int, 7, Literal[1] | float, ()),
        (Literal[1, 7], 7, Literal[1] | int, FORMATS),
        (Literal["red"], "red", Annotated[str, Meta(max_length=2)] | Literal["red"], ()),
        (Literal[7], 7, Annotated[int, Meta(le=3)] | Literal[7], ()),
        (Literal["red"], "red", str | Literal["blue"], FORMATS),
    ],
)
def test_forms_that_depend_on_the_format_and_on_the_other_members_of_a_union(
    written: Any, value: Any, read: Any, formats: tuple[str, ...]
) -> None:
    for written_as in FORMATS:
        record = EventCodec("topic", written, written_as).encode(value)
        lost = misreads(describe_event(written), describe_event(read), json=written_as == "json")
        reads = decodes(EventCodec("topic", read, written_as), record)
        assert (not lost) == reads == (written_as in formats), (written_as, lost)
