"""What is compatible is what decodes: verdicts on random types against msgspec itself."""

from __future__ import annotations

import re
from random import Random

import msgspec

from tailrace.core.declare.event_codec import EventCodec
from tailrace.core.errors import TailraceError
from tailrace.core.values.type_schemas import describe_event
from tailrace.core.values.types import CODEC_ERRORS
from tailrace.schemas.reading import misreads
from tests.schemas.random_types import Planned, built, changed, planned, struct, values

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
    for seed in seeds:
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
