"""Shapes: a stateless function filters them, a topic re-keys them by colour, and an actor counts them.

    shapes  ──►  not_orange  ──►  shapes-by-colour  ──►  Colour  ──►  colour-counts
    (key: drawing)                (key: colour)                       (key: colour)

The shapes of a colour come from all partitions of `shapes`. The topic `shapes-by-colour` brings them to the one task that
counts them.
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
        """Count the shape, and emit the count."""
        self.count += 1
        ctx.emit(colour_counts, ColourCount(ctx.key, self.count))
