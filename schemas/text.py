"""Text: lines, their words, and how often a word occurs."""

import msgspec

import tailrace as tr


class Line(msgspec.Struct, frozen=True):
    """A line that somebody has written."""

    author: str
    at_ms: tr.EventTime[int]
    text: str


class Word(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A word of a line, in lower case."""

    word: tr.Key[str]
    at_ms: tr.EventTime[int]


class WordCount(msgspec.Struct, tr.Keyed[str], frozen=True):
    """How often a word occurred from ``start`` to before ``end``."""

    word: tr.Key[str]
    start: int
    end: tr.EventTime[int]
    value: int
