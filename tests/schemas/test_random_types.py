"""What is compatible decodes: verdicts on random types against msgspec itself."""

from __future__ import annotations

from random import Random

import msgspec

from tailrace.core.declare.event_codec import EventCodec
from tailrace.core.errors import TailraceError
from tailrace.core.values.types import CODEC_ERRORS
from tests.schemas.random_types import Planned, built, changed, planned, struct, values
from tests.schemas.verdicts import lost

PAIRS = 4
"""Pairs of types for each seed."""
FORMATS = ("json", "msgpack")


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


def test_a_type_that_reads_another_one_decodes_all_its_values(seeds: range) -> None:
    verdicts = {True: 0, False: 0}
    for seed in (PAIRS * one + at for one in seeds for at in range(PAIRS)):
        found = pair(seed)
        if found is None:
            continue
        one = found[0].type
        assert not lost(one, one), f"seed {seed}"
        for written, read in (found, found[::-1]):
            is_refused = bool(lost(written.type, read.type))
            verdicts[is_refused] += 1
            for written_as in () if is_refused else FORMATS:
                codec, reader = (EventCodec("topic", each.type, written_as) for each in (written, read))
                failed = [one for one in records(written, codec) if not decodes(reader, one)]
                assert not failed, f"seed {seed}, {written_as}: {failed}"
    assert all(verdicts.values()), verdicts
