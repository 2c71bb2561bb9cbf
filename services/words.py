"""Words: how often each occurs in 5 seconds, every second.

    lines  ──►  split  ──►  words  ──►  counts  ──►  word-counts
                            keyed by word

A sliding window keeps one number per second, not one per window.
"""

import tailrace as tr
from schemas.text import Line, Word, WordCount
from tailrace import agg, windows

app = tr.App("words")
lines = app.topic("lines", Line, key=None, out_of_order="1s")
words = app.topic("words", Word)
word_counts = app.topic("word-counts", WordCount)


@app.process(lines)
def split(line: Line, ctx: tr.Context[bytes | None]) -> None:
    """Emit each word of a line."""
    for word in line.text.lower().split():
        ctx.emit(words, Word(word, line.at_ms))


counts = app.window("counts", words, windows.sliding("5s", every="1s"), agg.count(), into=word_counts)
