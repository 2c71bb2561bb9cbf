"""Payments, the rules that they are checked by, and what a rule has found."""

import msgspec

import tailrace as tr


class CardPayment(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A payment by the card of an account."""

    account: tr.Key[str]
    at_ms: tr.EventTime[int]
    id: str
    cents: int


class FraudRule(msgspec.Struct, tr.Keyed[str], frozen=True):
    """Payments of more than ``above_cents``, alone or with all others of the hour, are suspicious. 0: the rule is off."""

    name: tr.Key[str]
    above_cents: int
    per_hour: bool = False


class Suspicious(msgspec.Struct, tr.Keyed[str], frozen=True):
    """A payment that a rule has found."""

    account: tr.Key[str]
    payment: str
    rule: str
    cents: int
