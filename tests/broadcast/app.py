"""Payments that are judged by rules, which every task has as a table; and what the rules say of each payment."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Literal

import msgspec

import tailrace as tr
from tailrace.core.records import Output

KINDS = 40


class Rule(msgspec.Struct, frozen=True):
    kind: tr.Key[str]
    version: int
    limit: float
    tags: tuple[str, ...] = ()


class Payment(msgspec.Struct, frozen=True):
    account: tr.Key[str]
    at: tr.EventTime[int]
    kind: str
    amount: int


class Verdict(msgspec.Struct, frozen=True):
    account: tr.Key[str]
    at: tr.EventTime[int]
    kind: str
    version: int | None
    is_over: bool
    rules: int


def make_app(*, partitions: int = 4, order: Literal["arrival", "event-time"] = "arrival") -> tr.App:
    app = tr.App("payments", partitions=partitions)
    payments = app.topic("paid", Payment)
    of_kind = app.topic("rules", Rule, broadcast=True)
    verdicts = app.topic("verdicts", Verdict)

    @app.actor
    class Account(tr.Actor, order=order):
        count: int = 0
        rules: tr.Shared[str, Rule] = tr.shared(of_kind)

        @tr.process(payments)
        def judge(self, event: Payment, ctx: tr.Context[str]) -> None:
            self.count += 1
            rule = self.rules.get(event.kind)
            assert (rule is not None) == (event.kind in self.rules)
            version = None if rule is None else rule.version
            is_over = rule is not None and event.amount > self.rules[event.kind].limit
            count = sum(rule == self.rules[key] for key, rule in self.rules.items())
            ctx.emit(verdicts, Verdict(event.account, event.at, event.kind, version, is_over, count))

    return app


app = make_app()


def rules(version: int, kinds: Iterable[int] = range(KINDS)) -> list[Rule]:
    return [Rule(f"kind-{kind}", version, kind + version, (f"v{version}",)) for kind in kinds]


def payments(count: int, start: int = 0) -> list[Payment]:
    """Of some kinds there is no rule."""
    return [
        Payment(f"account-{number % 31}", number * 1_000, f"kind-{number * 7 % (KINDS + 5)}", number % 60)
        for number in range(start, start + count)
    ]


def verdict(payment: Payment, known: dict[str, Rule]) -> Verdict:
    """The oracle: by a dict of the newest rules."""
    rule = known.get(payment.kind)
    is_over = rule is not None and payment.amount > rule.limit
    return Verdict(
        payment.account, payment.at, payment.kind, None if rule is None else rule.version, is_over, len(known)
    )


def verdicts(paid: Sequence[Payment], known: Sequence[Rule]) -> list[Verdict]:
    table = {one.kind: one for one in known}
    return ordered(verdict(one, table) for one in paid)


def ordered(found: Iterable[Verdict]) -> list[Verdict]:
    return sorted(found, key=lambda one: (one.at, one.account))


def records(events: Sequence[Rule | Payment]) -> list[Output]:
    """As producers write them."""
    return [
        Output("rules", one.kind.encode(), msgspec.json.encode(one), 1_000)
        if isinstance(one, Rule)
        else Output("paid", one.account.encode(), msgspec.json.encode(one), one.at)
        for one in events
    ]
