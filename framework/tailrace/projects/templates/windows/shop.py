"""Sales of branches: the revenue of each hour, and which branch has fallen quiet."""

import tailrace as tr
from schemas.sales import Quiet, Revenue, Sale
from tailrace import agg, windows

QUIET_MS = 2 * 3_600_000

app = tr.App("shop")
sales = app.topic("sales", Sale, out_of_order="1m")
too_late = app.topic("sales-too-late", Sale)
revenue = app.table("revenue", Revenue, key=("branch", "start"))
quiet = app.topic("quiet-branches", Quiet)

# An hour is in the table when event time has passed it. A sale that is up to a day late corrects it; a later one is in the topic too_late.
app.window(
    "hourly",
    sales,
    windows.tumbling("1h"),
    agg.several(cents=agg.total(lambda sale: sale.cents), sales=agg.count()),
    lateness="1d",
    late=too_late,
    into=revenue,
)


@app.actor
class Branch(tr.Actor, order="event-time"):
    """One instance for each branch. Its events come in the order of their times, and so do its timers between them."""

    last_ms: int = 0

    @tr.process(sales)
    def sold(self, event: Sale, ctx: tr.Context[str]) -> None:
        self.last_ms = max(self.last_ms, event.at_ms)
        ctx.set_timer(self.last_ms + QUIET_MS, "quiet")

    @tr.on_timer("quiet")
    def fell_quiet(self, ctx: tr.Context[str]) -> None:
        ctx.emit(quiet, Quiet(ctx.key, self.last_ms))
