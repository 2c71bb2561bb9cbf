"""An app that counts words, for streams of its changes."""

from __future__ import annotations

import msgspec

import tailrace as tr


class Said(msgspec.Struct):
    """A word that was said."""

    word: str


tally = tr.App("tally", partitions=4)
words = tally.topic("words", Said, key="word")


@tally.actor
class Word(tr.Actor):
    """Counts; a third time of a word deletes its state."""

    count: int = 0
    last: str | None = None

    @tr.process(words)
    def came(self, event: Said, ctx: tr.Context[str]) -> None:
        if self.count == 2:
            ctx.clear()
        else:
            self.count += 1
            self.last = event.word.upper()
