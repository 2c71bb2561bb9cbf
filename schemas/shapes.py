"""Coloured shapes, as somebody draws them, and how many of a colour there are."""

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
