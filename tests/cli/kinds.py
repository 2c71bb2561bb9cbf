"""An app whose events are a dataclass and a pydantic model."""

from __future__ import annotations

from dataclasses import dataclass

import pydantic

import tailrace as tr


@dataclass(frozen=True, slots=True)
class Visit:
    user: tr.Key[str]
    at: tr.EventTime[int]
    score: float = 0.0


class Purchase(pydantic.BaseModel):
    user: tr.Key[str]
    at: tr.EventTime[int]
    cents: int = pydantic.Field(default=0, ge=0, alias="amount")


app = tr.App("kinds", partitions=1)
visits = app.topic("visits", Visit)
purchases = app.topic("purchases", Purchase)


@app.actor
class User(tr.Actor, order="arrival"):
    n: int = 0

    @tr.process(visits, purchases)
    def seen(self, event: Visit | Purchase, ctx: tr.Context[str]) -> None:
        self.n += 1
