"""An app in two versions, each a file: the second is made of the first by replacing lines."""

from __future__ import annotations

from pathlib import Path

import msgspec

import tailrace as tr


class Sale(msgspec.Struct):
    """What a shop has sold."""

    shop: str
    at: int
    cents: int


class Total(msgspec.Struct):
    """What a shop has sold in all."""

    shop: str
    cents: int


app = tr.App("selling", partitions=2)
sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=10)
totals = app.topic("totals", Total, key="shop")


@app.actor
class Shop(tr.Actor):
    """Sums up, and counts by last digit."""

    cents: int = 0
    count: int = 0
    by_digit: tr.MapState[int, int]

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
        """Take a sale."""
        self.cents += event.cents
        self.count += 1
        self.by_digit[event.cents % 10] = self.by_digit.get(event.cents % 10, 0) + 1
        ctx.emit(totals, Total(event.shop, self.cents))
        ctx.set_timer(event.at + 50, "closing")

    @tr.on_timer("closing")
    def closed(self, ctx: tr.Context[str]) -> None:
        """Close."""
        self.cents -= 1


def version(folder: Path, name: str, *changes: tuple[str, str], of: str = __file__) -> str:
    """Write an app to a file of this name, with texts replaced, and return its reference."""
    text = Path(of).read_text(encoding="utf-8").split("\n\ndef version(")[0]
    for before, after in changes:
        assert before in text
        text = text.replace(before, after)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{name}.py").write_text(text + "\n", encoding="utf-8")
    return f"{folder / name}.py:app"
