"""Shapes: filtered by a stateless function, re-keyed by colour through a topic, and counted by an actor.

    shapes  ──►  not_orange  ──►  shapes-by-colour  ──►  Colour  ──►  colour-counts
    (key: drawing)                (key: colour)                       (key: colour)

A colour's shapes come from every partition of `shapes`; the topic between brings them to the one task that counts them.
"""

import tailrace as tr
from schemas.shapes import ColourCount, Shape

app = tr.App("shapes")
shapes = app.topic("shapes", Shape)
by_colour = app.topic("shapes-by-colour", Shape, key="colour", key_type=str)
colour_counts = app.topic("colour-counts", ColourCount)


@app.process(shapes)
def not_orange(shape: Shape, ctx: tr.Context[str]) -> None:
    """Pass on every shape that is not orange."""
    if shape.colour != "orange":
        ctx.emit(by_colour, shape)


@app.actor
class Colour(tr.Actor):
    """The shapes of one colour."""

    count: int = 0

    @tr.process(by_colour)
    def drawn(self, shape: Shape, ctx: tr.Context[str]) -> None:
        """Count it, and tell."""
        self.count += 1
        ctx.emit(colour_counts, ColourCount(ctx.key, self.count))
