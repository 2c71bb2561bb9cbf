"""Coloured shapes that are drawn, and the number of shapes of each colour."""

import msgspec

import tailrace as tr


class Shape(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A shape that was drawn."""

    drawing: tr.Key[str]
    kind: str
    colour: str


class ColourCount(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The running number of shapes of one colour."""

    colour: tr.Key[str]
    count: int
