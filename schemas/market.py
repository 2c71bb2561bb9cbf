"""A market: trades, and the prices of some seconds in a few numbers."""

import msgspec

import tailrace as tr


class Trade(msgspec.Struct, tr.Keyed[str], frozen=True):
    """One trade of a symbol."""

    symbol: tr.Key[str]
    at_ms: tr.EventTime[int]
    price: float


class Prices(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The prices of a symbol over a window: their mean, and the whole trade with the highest one."""

    symbol: tr.Key[str]
    start: int
    end: tr.EventTime[int]
    mean: float
    highest: Trade
    trades: int


class Quote(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A trade for all to compare: its key is the market."""

    market: tr.Key[str]
    symbol: str
    at_ms: tr.EventTime[int]
    price: float


class Cheapest(msgspec.Struct, tr.Keyed[str], frozen=True):
    """The cheapest trade of a market over a window."""

    market: tr.Key[str]
    start: int
    end: tr.EventTime[int]
    value: Quote
