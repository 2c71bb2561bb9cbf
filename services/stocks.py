"""Stocks: over 10 seconds, every 5 seconds, what a symbol has cost, and the cheapest trade of the market.

trades  ──┬──►  symbols  ──►  prices       mean and highest trade of each symbol
          └──►  to_market  ──►  quotes  ──►  market  ──►  cheapest
                                keyed by the market
"""

import tailrace as tr
from schemas.market import Cheapest, Prices, Quote, Trade
from tailrace import agg, windows

TEN_SECONDS = windows.sliding("10s", every="5s")

app = tr.App("stocks")
trades = app.topic("trades", Trade, out_of_order="1s")
# After a time without trades a quote may come late: it is left out, and counted.
quotes = app.topic("quotes", Quote, late="handle")
prices = app.topic("prices", Prices)
cheapest = app.topic("cheapest", Cheapest)

symbols = app.window(
    "symbols",
    trades,
    TEN_SECONDS,
    agg.several(
        mean=agg.mean(lambda t: t.price), highest=agg.max_by(Trade, lambda t: t.price), trades=agg.count()
    ),
    into=prices,
)


@app.process(trades)
def to_market(trade: Trade, ctx: tr.Context[str]) -> None:
    """Give every trade to the one market, to compare symbols."""
    ctx.emit(quotes, Quote("all", trade.symbol, trade.at_ms, trade.price))


market = app.window("market", quotes, TEN_SECONDS, agg.min_by(Quote, lambda q: q.price), into=cheapest)
