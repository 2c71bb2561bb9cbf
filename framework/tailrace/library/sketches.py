"""Estimates in bounded space: how many values are distinct, and quantiles. Both are functions of the set of values.

**Distinct values**: HyperLogLog (Flajolet et al. 2007) with the estimator of Ertl (2017), which needs no tables of corrections. The
accumulator is the hashes of the values, ascending, while these take less room than the registers; then the registers, a byte each.

**Quantiles**: counts in bins, each power of two cut into equal parts (as in HdrHistogram), so that a bin is exact arithmetic and the
same on every machine. The accumulator is the bins that are not empty, ascending: number and count.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence
from hashlib import blake2b
from math import ceil, frexp, inf, isfinite, ldexp, log2, sqrt
from struct import Struct
from typing import Any

import msgspec

_encode = msgspec.msgpack.Encoder(order="deterministic").encode
_HASH = 8
_BIN = Struct(">IQ")
_ZERO = 1 << 31
"""The number of the bin of zero: bins of negative values are below."""
_LN2 = 0.6931471805599453


def place(acc: bytes, one: bytes, width: int) -> int:
    """Where an entry is, or belongs, among entries of this width, of which the beginning is compared."""
    key = len(one)
    return width * bisect_left(range(len(acc) // width), one, key=lambda n: acc[width * n : width * n + key])


class Distinct:
    """The estimate of a number of distinct values, with this standard error."""

    def __init__(self, of: Callable[[Any], Any], error: float) -> None:
        self._of = of
        self.bits = max(6, min(18, ceil(2 * log2(1.04 / error))))
        self._registers = 1 << self.bits

    def add(self, acc: bytes, event: Any, _: int) -> bytes:
        """The accumulator with one more event."""
        one = blake2b(_encode(self._of(event)), digest_size=_HASH).digest()
        if len(acc) == self._registers:
            at, rank = self._rank(one)
            return acc if acc[at] >= rank else b"".join((acc[:at], bytes((rank,)), acc[at + 1 :]))
        at = place(acc, one, _HASH)
        return acc if acc[at : at + _HASH] == one else self._held(acc[:at] + one + acc[at:])

    def merge(self, a: bytes, b: bytes) -> bytes:
        """The accumulator of the events of both."""
        if len(a) < self._registers and len(b) < self._registers:
            hashes = {acc[at : at + _HASH] for acc in (a, b) for at in range(0, len(acc), _HASH)}
            return self._held(b"".join(sorted(hashes)))
        return bytes(map(max, self._dense(a), self._dense(b)))

    def _held(self, hashes: bytes) -> bytes:
        return hashes if len(hashes) < self._registers else self._dense(hashes, full=True)

    def _dense(self, acc: bytes, *, full: bool = False) -> bytes:
        if len(acc) == self._registers and not full:
            return acc
        registers = bytearray(self._registers)
        for start in range(0, len(acc), _HASH):
            at, rank = self._rank(acc[start : start + _HASH])
            registers[at] = max(registers[at], rank)
        return bytes(registers)

    def _rank(self, one: bytes) -> tuple[int, int]:
        number, rest = int.from_bytes(one, "big"), 64 - self.bits
        return number >> rest, rest - (number & ((1 << rest) - 1)).bit_length() + 1

    def result(self, acc: bytes) -> int:
        """The estimate; exact while the hashes are kept."""
        if len(acc) < self._registers:
            return len(acc) // _HASH
        m, last, counts = self._registers, 64 - self.bits + 1, Counter(acc)
        z = m * _tau(1 - counts[last] / m)
        for rank in range(last - 1, 0, -1):
            z = 0.5 * (z + counts[rank])
        return round(m * m / (2 * _LN2 * (z + m * _sigma(counts[0] / m))))


def _sigma(x: float) -> float:
    y, z, before = 1.0, x, -1.0
    while z != before and x < 1:
        x, before = x * x, z
        z, y = z + x * y, y + y
    return z if x < 1 else inf


def _tau(x: float) -> float:
    y, z, before = 1.0, 1 - x, -1.0
    while z != before and 0 < x < 1:
        x, before, y = sqrt(x), z, 0.5 * y
        z -= (1 - x) ** 2 * y
    return z / 3


class Quantiles:
    """Quantiles of numbers, each within this relative error of a value of that rank."""

    def __init__(
        self, of: Callable[[Any], float], at: Sequence[float], error: float, limited: Callable[[bytes], bytes]
    ) -> None:
        self._of, self._at, self._parts, self._limited = of, tuple(at), ceil(1 / (2 * error)), limited

    def add(self, acc: bytes, event: Any, _: int) -> bytes:
        """The accumulator with one more event."""
        number = self._of(event)
        if not isfinite(number):
            raise ValueError(f"agg.quantiles was given {number}")
        one = (_ZERO + self._bin(number)).to_bytes(4, "big")
        at = place(acc, one, _BIN.size)
        if acc[at : at + 4] != one:
            return self._limited(acc[:at] + _BIN.pack(int.from_bytes(one, "big"), 1) + acc[at:])
        count = _BIN.unpack_from(acc, at)[1] + 1
        return b"".join((acc[: at + 4], count.to_bytes(8, "big"), acc[at + _BIN.size :]))

    def merge(self, a: bytes, b: bytes) -> bytes:
        """The accumulator of the events of both."""
        counts = Counter(dict(_BIN.iter_unpack(a)))
        counts.update(dict(_BIN.iter_unpack(b)))
        return self._limited(b"".join(_BIN.pack(*one) for one in sorted(counts.items())))

    def _bin(self, number: float) -> int:
        if number == 0:
            return 0
        part, exponent = frexp(abs(number))
        found = (exponent + 1_100) * self._parts + int((2 * part - 1) * self._parts)
        return found if number > 0 else -found

    def _middle(self, number: int) -> float:
        if number == 0:
            return 0.0
        exponent, part = divmod(abs(number), self._parts)
        middle = ldexp((1 + (part + 0.5) / self._parts) / 2, exponent - 1_100)
        return middle if number > 0 else -middle

    def result(self, acc: bytes) -> tuple[float, ...]:
        """A number for each quantile; none for no events."""
        bins = list(_BIN.iter_unpack(acc))
        total, found = sum(count for _, count in bins), list[float]()
        for at in self._at if total else ():
            rank, reached = max(1, ceil(at * total)), 0
            for number, count in bins:
                reached += count
                if reached >= rank:
                    found.append(self._middle(number - _ZERO))
                    break
        return tuple(found)
