"""``tailrace run B --shadow A``: what grows is what a comparison of the whole history finds."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.errors import OptionError
from tailrace.core.records import Output
from tailrace.history.rebuilding.request import Source
from tailrace.lab import comparison as both
from tailrace.lab import shadow
from tailrace.lab.comparison import AbReport, Wanted
from tailrace.lab.shadow import follow
from tailrace.state.snapshots.arrow import parquet
from tests.cli.commands import run
from tests.history.rebuilding import lived, payments, shops
from tests.lab.in_process import Here, comparison
from tests.lab.selling import version

PAYMENTS = "tests.history.rebuilding.payments:app"
SELLING = "tests.lab.selling:app"
SOLD = "self.cents += event.cents"
TABLES = ("differences", "outputs_differences")
EACH = 40


class KilledError(BaseException):
    """Ends a shadow where a kill would."""


def grow(folder: Path, number: int) -> None:
    """The service handles more."""
    sales = shops.sales(EACH, first=EACH * number) if number else shops.sales(EACH)
    lived.append(folder, sales, {} if number else {"sales": 2})
    lived.live_on(folder, SELLING, ends=False)


def table(folder: Path, name: str, *, firsts: bool = True) -> list[tuple[object, ...]]:
    """The rows of a table, in one order; without the first events, if they are not wanted."""
    rows = parquet.read_table(folder / f"{name}.parquet").to_pylist()
    kept = [[value for at, value in one.items() if firsts or not at.startswith("first_")] for one in rows]
    return sorted(map(tuple, kept), key=repr)


def one_round(folder: Path, b: str, to: Path, **options: Any) -> None:
    options = {"a": SELLING, "b": b, "source": Source(log=str(folder / "log")), "to": str(to), **options}
    follow(Wanted(workers=1, **options), 0.1, rounds=1)


@contextmanager
def killing(monkeypatch: pytest.MonkeyPatch, step: str) -> Generator[None]:
    """A shadow ends after this step of a round, with its versions and their stores."""
    before: Callable[..., Any] = getattr(shadow._Shadow, step)

    def then_killed(self: Any, *given: Any, **named: Any) -> None:
        before(self, *given, **named)
        raise KilledError

    with monkeypatch.context() as patch:
        patch.setattr(shadow._Shadow, step, then_killed)
        yield


EMIT = "ctx.emit(totals, Total(event.shop, self.cents))"


@pytest.mark.parametrize(
    ("emits", "each", "first", "second"),
    [
        (EMIT, EACH, "_rebuilt", "_publish"),
        (f"{EMIT}\n        {EMIT}", 2 * EACH, "_compared", "_so_far"),
        (f"event.at % 20 or {EMIT}", EACH // 2, "_so_far", "_rebuilt"),
    ],
)
def test_the_tables_of_a_shadow_are_those_of_a_comparison_of_the_whole_history(
    emits: str, each: int, first: str, second: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if it is killed within a round, and if B emits more or less than A."""
    monkeypatch.setattr(both, "Version", Here)
    Here.tasks, to = [], tmp_path / "shadow"
    wrong = "".join(
        f"\n        if event.at == {at}:\n            self.cents += {at}" for at in (1_300, 1_900)
    )
    b = version(tmp_path, f"shadow_of_selling_{each}", (SOLD, SOLD + wrong), (EMIT, emits))
    rounds = ("", first, second, "")
    for number, killed in enumerate(rounds):
        grow(tmp_path, number)
        if killed:
            with killing(monkeypatch, killed), pytest.raises(KilledError):
                one_round(tmp_path, b, to)
        one_round(tmp_path, b, to)
    report, keys, outputs = comparison(monkeypatch, tmp_path, SELLING, b, to=str(tmp_path / "ab"))
    assert report.order == "stages"
    assert keys
    assert outputs
    for name in TABLES:  # a key whose outputs part first is one of outputs until its state parts
        firsts = each == EACH
        assert table(to, name, firsts=firsts) == table(tmp_path / "ab", name, firsts=firsts)
    files = (to / "outputs" / "totals").glob("*.parquet")
    sent = [
        (one["_partition"], one["_offset"]) for file in files for one in parquet.read_table(file).to_pylist()
    ]
    assert len(sent) == len({*sent}) == len(rounds) * each
    assert {one.name for one in (to / ".shadow").glob("*-[0-9]")} == {"round-4"}


def test_a_round_measures_and_counts_all_so_far(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both, "Version", Here)
    monkeypatch.syspath_prepend(str(tmp_path))
    Here.tasks, to, metrics = [], tmp_path / "shadow", tmp_path / "metrics.sql"
    metrics.write_text(
        '-- name: sold\nselect sum(cents) from outputs."totals"\n-- name: shops\nselect count(*) from states.Shop\n'
    )
    closed = ("self.cents -= 1", "ctx.clear()")
    a = version(tmp_path, "shadow_of_closing", closed)
    b = version(tmp_path, "shadow_closing", closed, (SOLD, f"{SOLD} + (event.cents == 7)"))
    keys, sales = list[int](), shops.sales(EACH)
    for at_ms in (0, 1_000_000, 1_000_000, 2_000_000):
        if at_ms:  # the shops of the partition that sold before are closed by then
            content = msgspec.json.encode({"shop": "shop-1", "at": at_ms, "cents": 7})
            sales = [Output("sales", b"shop-1", content, at_ms)]
        lived.append(tmp_path, sales, {"sales": 2})
        lived.live_on(tmp_path, "shadow_of_closing:app", ends=False)
        one_round(tmp_path, b, to, a=a, metrics=str(metrics))
        grown = msgspec.json.decode((to / "report.json").read_bytes(), type=AbReport)
        keys.append(grown.counts.keys)
    assert keys[0] > keys[1] == keys[2] == keys[3]
    report, *tables = comparison(monkeypatch, tmp_path, a, b, to=str(tmp_path / "ab"), metrics=str(metrics))
    assert (grown.counts, grown.metrics, grown.noise) == (report.counts, report.metrics, [])
    assert [table(to, name) for name in TABLES] == [table(tmp_path / "ab", name) for name in TABLES]
    assert all(tables)


def test_what_cannot_be_done_is_refused_in_a_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(both, "Version", Here)
    Here.tasks = []
    lived.append(tmp_path, [], {"sales": 2})
    narrow = version(tmp_path, "shadow_narrow", ("partitions=2", "partitions=3"))
    with pytest.raises(OptionError, match="A has 2 partitions, B has 3"):
        one_round(tmp_path, narrow, tmp_path / "narrow")
    more = (
        'totals = app.topic("totals", Total, key="shop")',
        'totals = app.topic("totals", Total, key="shop")\nmore = app.topic("more", Sale, key="shop")',
    )
    also = "@tr.process(more)\n    def also(self, event: Sale, ctx: tr.Context[str]) -> None:\n        pass"
    handler = ("    @tr.on_timer", f"    {also}\n\n    @tr.on_timer")
    wider = version(tmp_path, "shadow_wider", more, handler, ("(tr.Actor)", '(tr.Actor, order="arrival")'))
    with pytest.raises(OptionError, match="only one of both reads more"):
        one_round(tmp_path, wider, tmp_path / "wider")
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "file").write_text("mine")
    with pytest.raises(OptionError, match="there is something in"):
        one_round(tmp_path, SELLING, tmp_path / "taken")
    grow(tmp_path, 1)


def test_a_version_may_send_itself_other_records(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(both, "Version", Here)
    Here.tasks = []
    lived.append(tmp_path, payments.outputs(payments.payments(60)), {"paid": 2})
    lived.live_on(tmp_path, PAYMENTS)
    large = '1 if wrong() == "topic" else event.amount'
    b = version(tmp_path, "shadow_sends", (large, "event.amount + 1"), of=payments.__file__)
    wanted = Wanted(a=PAYMENTS, b=b, source=Source(log=str(tmp_path / "log")), to=str(tmp_path / "to"))
    follow(wanted, 0.1, rounds=1)
    comparison(monkeypatch, tmp_path, PAYMENTS, b, to=str(tmp_path / "ab"))
    assert table(tmp_path / "to", "outputs_differences")
    for name in TABLES:
        assert table(tmp_path / "to", name) == table(tmp_path / "ab", name)


def test_a_folder_of_another_command_or_code_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(both, "Version", Here)
    Here.tasks, to = [], tmp_path / "shadow"
    grow(tmp_path, 0)
    one_round(tmp_path, SELLING, to)
    with pytest.raises(OptionError, match="was begun by another command"):
        one_round(tmp_path, SELLING, to, first_events=1)
    file = to / ".shadow" / "shadow.json"
    file.write_bytes(file.read_bytes().replace(b'"code":["', b'"code":["0'))
    with pytest.raises(OptionError, match="was begun with other code"):
        one_round(tmp_path, SELLING, to)


@pytest.mark.nightly
@pytest.mark.long
def test_a_shadow_is_a_process_that_ends_cleanly_and_has_its_folder_alone(tmp_path: Path) -> None:
    grow(tmp_path, 0)
    b = version(tmp_path, "shadowing", (SOLD, f"{SOLD} + 1"))
    to = tmp_path / "shadow"
    command = ("run", b, "--shadow", SELLING, "--log", tmp_path / "log", "--to", to)
    for sent, code in ((signal.SIGKILL, -signal.SIGKILL), (signal.SIGTERM, 0)):
        running = subprocess.Popen(
            [sys.executable, "-m", "tailrace", *map(str, command), "--every", "100ms"],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert running.stderr is not None
        try:
            grow(tmp_path, 1 if code else 2)
            said = running.stderr.readline()
            assert "8 of 8 keys differ" in said, said + running.stderr.read()
            refused = run(*command)
            assert (refused.code, "another shadow writes into" in refused.err) == (2, True)
            os.kill(running.pid, sent)
            assert running.wait(30) == code
        finally:
            running.kill()
            running.communicate()
    assert "8 of 8 keys" in (to / "report.html").read_text(encoding="utf-8")
    refused = run(*command, "--workers", 2)
    assert refused.code == 2
    assert "--workers is for a service: it does not go with --shadow" in refused.err
