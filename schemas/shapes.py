"""Coloured shapes, as somebody draws them, and how many of a colour there are."""

import msgspec


class Shape(msgspec.Struct, frozen=True):
    """A shape that was drawn."""

    drawing: str
    kind: str
    colour: str


class ColourCount(msgspec.Struct, frozen=True):
    """The running number of shapes of one colour."""

    colour: str
    count: int
