"""State that an operator of another meaning has stored is not read: a start is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from tailrace import windows
from tailrace.core.errors import IncompatibleStateError
from tailrace.testing import Harness
from tests.library.test_refused import Declared, Other

TEN = ("0s", "10m")
EXCHANGED: list[Callable[..., Any]] = [
    Declared.join,
    lambda d, *inputs: d.app.window_join("o", *inputs, windows.tumbling("1h")),
    lambda d, *inputs: d.app.asof("o", *inputs, keep="1m"),
    lambda d, *inputs: d.app.gather("o", *inputs, within="1m"),
]
OVER_STATE: list[tuple[Callable[[Declared], Any], Callable[[Declared], Any], str | None]] = [
    (lambda d: d.window(), lambda d: d.window(windows.tumbling(10)), "o"),
    (lambda d: d.window(windows.global_(), early=9), lambda d: d.window(windows.global_(), early=3), None),
    (
        lambda d: d.window(windows.global_(), early=9),
        lambda d: d.window(windows.global_(), early_clock="1s"),
        "by the clock",
    ),
    *[
        (
            lambda d, which=which, more=more: d.window(which, **more),
            lambda d, which=which, more=more: d.window(which, **more, early_clock="1s"),
            "o",
        )
        for which in (windows.tumbling(9), windows.sessions(9))
        for more in ({}, {"lateness": 5})
    ],
    (lambda d: d.window(early=2), lambda d: d.window(), None),
    (lambda d: d.dedupe(by="user"), lambda d: d.dedupe(by="key"), "dedupe: by user"),
    (
        lambda d: d.app.top("o", d.a, 1, by="user", of="at"),
        lambda d: d.app.top("o", d.a, 2, by="user", of="at"),
        "top: 1 by user",
    ),
    (lambda d: d.join(within=TEN), lambda d: d.join(within=TEN), None),
    (lambda d: d.join(within=TEN), lambda d: d.join(within=("0s", "11m")), "join: inner, from 0ms to 10m"),
    (lambda d: d.join(within=TEN), lambda d: d.join(within=TEN, how="left"), "join: inner, from 0ms to 10m"),
    *[
        (lambda d, join=join: join(d, d.a, d.b), lambda d, join=join: join(d, d.b, d.a), "of b, a")
        for join in EXCHANGED
    ],
]


@pytest.mark.parametrize(("before", "after", "said"), OVER_STATE)
def test_state_of_another_operator_is_not_read(
    before: Callable[[Declared], Any], after: Callable[[Declared], Any], said: str | None
) -> None:
    first, second = Declared(Other), Declared(Other)
    before(first)
    after(second)
    with Harness(first.app) as h:
        h.send(first.a, Other("k", 5, "ann"), Other("k", 6, "bob"))
        snapshot = h.snapshot()
    if said is None:
        Harness(second.app, start=snapshot).close()
        return
    with pytest.raises(IncompatibleStateError, match=said):
        Harness(second.app, start=snapshot)
