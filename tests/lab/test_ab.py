"""``tailrace ab``: what differs between two versions, and from which event on."""

from __future__ import annotations

import re
import shutil
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from tailrace.core.errors import HandlerError, OffsetGoneError, OptionError, TailraceError
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import Failures, Request, Source
from tailrace.lab import side
from tailrace.lab.comparison import AbReport
from tailrace.lab.tables import fields_of, write_page
from tailrace.log.embedded import EmbeddedLog
from tailrace.state.snapshots.arrow import pa, parquet
from tests.cli.commands import run
from tests.history.rebuilding import lived, shops
from tests.lab.in_process import comparison
from tests.lab.selling import version

SELLING = "tests.lab.selling:app"
PAYMENTS = "tests.history.rebuilding.payments:app"
SOLD = "self.cents += event.cents"
SALES = 120


@pytest.fixture(scope="module")
def sold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The log of a service that has run."""
    folder = tmp_path_factory.mktemp("sold")
    lived.append(folder, shops.sales(SALES), {"sales": 2})
    lived.live_on(folder, SELLING)
    return folder


@pytest.fixture(scope="module")
def unsold(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that no service has read."""
    folder = tmp_path_factory.mktemp("unsold")
    lived.append(folder, shops.sales(SALES), {"sales": 2, "totals": 2})
    return folder


def planted(at: int, code: str) -> str:
    """A line that does something else at one event."""
    return f"{SOLD}\n        if event.at == {at}:\n            {code}"


def test_a_version_with_more_fields_and_outputs_differs_in_what_it_reads(
    sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A field that only B has, at its default, is no difference; nor is it a first event."""
    fields = "    large: int = 0\n    tags: tr.MapState[str, int]\n    kept: tr.ListState[int]"
    takes = "self.large += 1; self.tags['new'] = 7; self.kept.append(8)"
    b = version(
        sold,
        "wider",
        ("    count: int = 0", f"    count: int = 0\n{fields}"),
        (SOLD, planted(1_500, f'{takes}\n            ctx.emit(totals, Total("more", 1))')),
    )
    report, keys, outputs = comparison(monkeypatch, sold, SELLING, b)
    sale = next(one for one in lived.read(sold, "sales") if one.timestamp_ms == 1_500)
    assert report.order == "stages"
    assert [(one["field"], one["b"], one["first_offset"]) for one in keys] == [
        ("kept[0] (only in B)", "8", sale.offset),
        ("large (only in B)", "1", sale.offset),
        ("tags['new'] (only in B)", "7", sale.offset),
    ]
    assert [(one["kind"], one["key"]) for one in outputs] == [("only-b", "more")]


@pytest.mark.parametrize("wider", ["a", "b"])
def test_a_field_of_one_version_is_shown_where_it_is_not_at_its_default(
    wider: str, sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also if other fields of the key differ."""
    sale = next(one for one in lived.read(sold, "sales") if one.timestamp_ms == 1_500)
    assert sale.key is not None
    large = version(
        sold,
        f"one_large_{wider}",
        ("    cents: int = 0\n    count", "    large: float = 0.0\n    cents: int = 0\n    count"),
        (SOLD, f"{planted(1_500, 'self.large += 1')}\n        self.cents += 5"),
    )
    ab = (SELLING, large) if wider == "b" else (large, SELLING)
    _, keys, _ = comparison(monkeypatch, sold, *ab, failures=Failures(any_environment=True))
    shops_of = {(one.key or b"").decode() for one in lived.read(sold, "sales")}
    expected = {(shop, "cents") for shop in shops_of}
    expected.add((sale.key.decode(), "large (only in B)" if wider == "b" else "large"))
    assert {(one["key"], one["field"]) for one in keys} == expected


REFUSED = [
    ("nothing", "names no version of an app"),
    ("a:b:c:d", "names no version of an app"),
    ("nowhere.py:app", "there is no file 'nowhere.py'"),
    ("no_such_module:app", "B: there is no module 'no_such_module'"),
    ("tests.lab.selling:shop", "B: the module 'tests.lab.selling' has no 'shop'"),
    (
        "no-such-revision:tests.lab.selling:app",
        "there is no revision 'no-such-revision'. Name a branch, a tag or a commit, or fetch it.",
    ),
    (PAYMENTS, "the app is 'selling' in A, 'payments' in B"),
]


@pytest.mark.parametrize(("b", "said"), REFUSED)
def test_what_cannot_be_compared_is_refused(
    sold: Path, monkeypatch: pytest.MonkeyPatch, b: str, said: str
) -> None:
    with pytest.raises(TailraceError, match=re.escape(said)):
        comparison(monkeypatch, sold, SELLING, b, to=str(sold / "refused"))
    assert not list(sold.glob("*refused*"))


BROKEN = [
    (("partitions=2", "partitions=3"), "B: the app 'selling' has 3 partitions, and ran with 2"),
    (
        ("import tailrace as tr", "import tailrace as tr\nimport no_such"),
        "B: the module 'broken_1' cannot be imported",
    ),
    ((SOLD, planted(1_500, "raise ValueError('no')")), "B: "),
    (('app.topic("sales"', 'app.topic("sold"'), "B: the log has no such topic, and the app reads it"),
]


@pytest.mark.parametrize("number", range(len(BROKEN)))
def test_a_version_that_cannot_be_rebuilt_is_refused(
    number: int, sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    change, said = BROKEN[number]
    b = version(sold, f"broken_{number}", change)
    with pytest.raises(TailraceError, match=re.escape(said)):
        comparison(monkeypatch, sold, SELLING, b)


def test_what_was_done_is_not_done_again(sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fails = version(tmp_path, "resumed", (SOLD, planted(1_500, "raise ValueError('no')")))
    folder = shutil.copytree(sold / "log", tmp_path / "log").parent
    with pytest.raises(HandlerError, match="B: "):
        comparison(monkeypatch, folder, SELLING, fails)
    made = next(folder.glob(".ab-0.ab/work/A-stages/selling/*/manifest.json")).stat().st_mtime_ns
    version(tmp_path, "resumed", (SOLD, planted(1_500, "self.cents += 2")))
    sys.modules.pop("resumed")
    begun: list[str] = []

    def rebuilt(request: Request, *rest: Any) -> RebuildReport:
        begun.append(request.app)
        return rebuild(request, *rest)

    monkeypatch.setattr(side, "rebuild", rebuilt)
    report, keys, _ = comparison(monkeypatch, folder, SELLING, fails)
    assert begun == ["resumed:app", SELLING, SELLING], "B, and A twice for the noise"
    assert made
    assert [one["difference"] for one in keys] == [2.0]
    assert not list(folder.glob(".ab*"))
    assert report.counts.keys_differ == 1
    with pytest.raises(OptionError, match="there is something in"):
        comparison(monkeypatch, folder, SELLING, fails, to=str(folder / "ab-0"))


def test_what_another_log_has_led_to_is_not_used(sold: Path, tmp_path: Path, monkeypatch: Any) -> None:
    b = version(tmp_path, "replaced", (SOLD, planted(1_500, "raise ValueError('no')")))
    folder = shutil.copytree(sold / "log", tmp_path / "log").parent
    with pytest.raises(HandlerError, match="B: "):
        comparison(monkeypatch, folder, SELLING, b)
    assert list(folder.glob(".ab-0.ab/work/A-stages/selling/*/manifest.json"))
    shutil.rmtree(folder / "log")
    lived.append(folder, shops.sales(9), {"sales": 2})
    lived.live_on(folder, SELLING)
    report, keys, _ = comparison(monkeypatch, folder, SELLING, b)
    assert (report.counts.keys_differ, keys, report.noise) == (0, [], [])
    assert 0 < report.counts.keys <= 9


METRICS = """
-- name: none
select 0
-- name: cents
-- unit: key
select key, cents from states."Shop"
-- name: outputs
-- unit: shop
select shop, max(cents) from outputs.totals group by shop
"""


def test_outputs_that_no_metric_names_are_no_tables(sold: Path, tmp_path: Path, monkeypatch: Any) -> None:
    def measured(_: Any, tables: Any) -> None:
        raise LookupError([*(tables["A"] / "outputs").iterdir()])

    (file := tmp_path / "metrics.sql").write_text("-- name: one\nselect 0", encoding="utf-8")
    monkeypatch.setattr("tailrace.lab.comparison.measure", measured)
    with pytest.raises(LookupError, match=r"^\[\]$"):
        comparison(monkeypatch, sold, SELLING, SELLING, metrics=str(file), to=str(tmp_path / "out"))


def test_metrics_and_limits_are_in_the_report_and_its_page(
    sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = version(sold, "measured", (SOLD, f"{SOLD} + 5"))
    file = tmp_path / "metrics.sql"
    file.write_text(METRICS.replace("outputs\n", "shown\n"), encoding="utf-8")
    limits = ("none>1%", "keys>50%", "cents>1", "shown>1000")
    to = str(tmp_path / "out")
    report, keys, _ = comparison(monkeypatch, sold, SELLING, b, metrics=str(file), limits=limits, to=to)
    wanted = [("none", 0.0), ("cents", 5.0 * SALES), ("shown", 5.0 * SALES)]
    assert [(one.name, one.difference) for one in report.metrics] == wanted
    cents = report.metrics[1]
    assert cents.values is not None
    by_shop = dict.fromkeys({one.key for one in lived.read(sold, "sales")}, 0)
    assert [sum(one) for one in cents.values.series] == [len(by_shop)] * 2
    assert cents.differences is not None
    assert sum(cents.differences.series[0]) == len(by_shop)
    assert cents.low is not None
    assert cents.high is not None
    assert cents.low < 5 * SALES < cents.high
    assert report.exceeded == ["keys>50%", "cents>1"]
    (said,) = report.unanswered  # which does not cost the others their answers
    assert "'none>1%' is a share of none, and that is 0" in said
    (field,) = (one for one in report.fields if one.field == "cents")
    assert (field.keys, sum(field.histogram)) == (8, 8)
    assert (sum(field.values_a), sum(field.values_b)) == (8, 8)
    assert field.mean == pytest.approx(5 * SALES / 8)
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert not re.search(r"(src|href)=.?(https?:)?//", page)
    for text in (
        "8 of 8 keys",
        "cents",
        "differences.parquet",
        f"Shop {keys[0]['key']}: cents",
        "would have reacted",
    ):
        assert text in page
    with pytest.raises(OptionError, match="is no limit"):
        comparison(monkeypatch, sold, SELLING, b, limits=("keys",))


def test_the_page_is_bounded_and_escaped(sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = "<script>alert(1)</script>"
    b = version(
        sold,
        "escaped",
        (SOLD, f'{SOLD}\n        self.note = "{script}" + 500 * "x"'),
        ("count: int = 0", 'count: int = 0\n    note: str = ""'),
    )
    _, keys, outputs = comparison(monkeypatch, sold, SELLING, b, to=str(tmp_path / "out"))
    assert len(keys) == 8
    assert outputs == []
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert script not in page
    assert "&lt;script&gt;" in page
    assert "x" * 300 not in page


def test_a_change_in_a_timer_is_found_at_the_timer(sold: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the first closing after which the shop has no sale for a while."""
    by_shop: dict[str, list[int]] = {}
    for one in sorted(lived.read(sold, "sales"), key=lambda one: one.timestamp_ms):
        by_shop.setdefault((one.key or b"").decode(), []).append(one.timestamp_ms)
    shop, number, at = next(
        (shop, number, at)
        for shop, times in by_shop.items()
        for number, (at, after) in enumerate(pairwise(times), 1)
        if after - at > 150 and number > 3
    )
    more = f'self.cents -= 1 + 9 * ((ctx.key, self.count) == ("{shop}", {number}))'
    b = version(sold, "at_closing", ("self.cents -= 1", more))
    _, keys, outputs = comparison(monkeypatch, sold, SELLING, b)
    assert [(one["key"], one["difference"]) for one in keys] == [(shop, -9.0)]
    wanted = ("Shop", "closing", None)
    assert (keys[0]["first_topic"], keys[0]["first_timer"], keys[0]["first_offset"]) == wanted
    assert keys[0]["first_time"].timestamp() * 1000 == at + 50
    # The outputs part with the state that they are made of.
    assert {one["first_timer"] for one in outputs} == {"closing"}
    assert min(one["time"].timestamp() * 1000 for one in outputs) == by_shop[shop][number]


def test_a_version_may_have_other_inputs(sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = shutil.copytree(sold / "log", tmp_path / "log").parent
    (sale,) = shops.sales(1, shops=1)
    lived.append(
        folder,
        [sale._replace(topic="more", key=b"new", value=(sale.value or b"").replace(b"shop-0", b"new"))],
        {"more": 2},
    )
    reads = 'sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=10)'
    also = f'{reads}\nmore = app.topic("more", Sale, key="shop", event_time="at", out_of_order=10)'
    b = version(
        folder,
        "reads_more",
        (reads, also),
        ("@tr.process(sales)", "@tr.process(sales, more)"),
        ("(tr.Actor)", '(tr.Actor, order="arrival")'),
    )
    report, keys, _ = comparison(monkeypatch, folder, SELLING, b)
    assert report.order == "stages"
    new = {(one["field"], one["a"]): one["first_topic"] for one in keys if one["key"] == "new"}
    assert new["count", "0"] == "more"
    assert report.noise_measured.startswith("a second run of A over ")


def test_a_version_that_has_not_run_is_compared_with_itself(
    sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = version(sold, "next_version", ("partitions=2", 'partitions=2, version="2"'))
    report, keys, _ = comparison(monkeypatch, sold, a, a)
    assert (report.order, report.noise, keys) == ("stages", [], [])
    assert report.noise_measured == f"a second run of A over {SALES:,} records, with other hashes"


def test_history_that_begins_in_the_middle_is_refused_unless_it_is_wanted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(SALES), {"sales": 2, "totals": 2})
    log = EmbeddedLog(tmp_path / "log")
    log.delete_before("sales", 0, 20)
    log.close()
    with pytest.raises(OffsetGoneError, match="--after-deleted"):
        comparison(monkeypatch, tmp_path, SELLING, SELLING)
    b = version(tmp_path, "in_the_middle", (SOLD, f"{SOLD} + 1"))
    source = Source(log=str(tmp_path / "log"), after_deleted=True)
    report, keys, _ = comparison(monkeypatch, tmp_path, SELLING, b, source=source)
    assert report.noise == []
    assert keys
    assert any("deleted" in note for note in report.notes)


def test_a_failure_of_a_version_can_go_to_its_dead_letters(
    sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = version(sold, "fails", (SOLD, planted(1_500, "raise ValueError('no')")))
    failures = Failures(on_error="dead-letter")
    report, keys, outputs = comparison(monkeypatch, sold, SELLING, b, failures=failures)
    assert (report.order, report.noise) == ("stages", [])
    sale = next(one for one in lived.read(sold, "sales") if one.timestamp_ms == 1_500)
    assert {one["first_offset"] for one in keys} == {sale.offset}
    assert ("selling.dead-letters", "only-b") in {(one["topic"], one["kind"]) for one in outputs}


def test_the_page_of_100_000_differences_is_small(tmp_path: Path) -> None:
    count = 100_000
    numbers = range(count)
    texts = {
        name: [f"{name}{one}" for one in numbers]
        for name in ("actor", "key", "topic", "field", "kind", "first_topic")
    }
    columns = {
        **texts,
        "a": [str(one) for one in numbers],
        "b": [str(2 * one) for one in numbers],
        "difference": [float(one) for one in numbers],
        "first_partition": [0] * count,
        "first_offset": [*numbers],
        "first_timer": pa.array([None] * count, pa.string()),
        "first_time": pa.array([*numbers], pa.timestamp("ms", "UTC")),
    }
    for name in ("differences", "outputs_differences"):
        parquet.write_table(pa.table(columns), tmp_path / f"{name}.parquet")
    report = AbReport(
        app="x", a="a", b="b", folder=str(tmp_path), fields=fields_of(tmp_path), notes=["n"] * 1_000
    )
    write_page(report, tmp_path)
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert len(page.encode()) < 100_000
    assert page.count("<tr>") == 3 + 3 * 50, "three tables, of fields and of differences, each of 50 rows"
    assert "50 of 100,000 rows" in page


def test_a_failure_of_version_a_can_go_to_its_dead_letters(
    sold: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    a = version(sold, "a_fails", (SOLD, planted(1_500, "raise ValueError('no')")))
    with pytest.raises(HandlerError, match="A: "):
        comparison(monkeypatch, sold, a, SELLING)
    _, keys, _ = comparison(monkeypatch, sold, a, SELLING, failures=Failures(on_error="dead-letter"))
    sale = next(one for one in lived.read(sold, "sales") if one.timestamp_ms == 1_500)
    assert {one["first_offset"] for one in keys} == {sale.offset}


def test_history_may_begin_with_a_snapshot(
    sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(sold, tmp_path / "own")
    report = rebuild(lived.request(folder, SELLING), LocalEngine(1))
    lived.append(folder, shops.sales(30, first=SALES), {})
    lived.live_on(folder, SELLING)
    at = 1_000 + 10 * (SALES + 12)
    b = version(folder, "after_a_snapshot", (SOLD, planted(at, "self.cents += 7")))
    source = Source(log=str(folder / "log"), base=str(folder / "snapshots"), base_id=report.snapshot)
    found, keys, _ = comparison(monkeypatch, folder, SELLING, b, source=source)
    sale = next(one for one in lived.read(folder, "sales") if one.timestamp_ms == at)
    measured = "nothing: a history that begins with a snapshot has no first part"
    assert (found.order, found.noise, found.noise_measured) == ("stages", [], measured)
    assert [(one["difference"], one["first_offset"]) for one in keys] == [(7.0, sale.offset)]
    assert found.counts.outputs == (30, 30)
    assert (
        found.part
        == f"compared is only what came after the snapshot {report.snapshot}, with which history begins"
    )


def test_all_that_the_log_has_is_compared_if_the_tape_begins_with_a_snapshot(
    sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = shutil.copytree(sold, tmp_path / "own")
    base = rebuild(lived.request(folder, SELLING, order="stages"), LocalEngine(1)).snapshot
    lived.live_on(folder, SELLING, replace=f"{folder / 'snapshots'}#{base}")
    b = version(folder, "before_the_base", (SOLD, planted(1_500, "self.cents += 7")))
    where = ("--log", folder / "log", "--workers", 1)
    ended = run("ab", SELLING, b, *where, "--to", tmp_path / "all", "--fail-on", "keys>0")
    assert ended.code == 1
    assert "both in stages\n1 of 8 keys differ" in ended.out
    assert "ATTENTION" not in ended.out


def test_a_history_without_records_is_the_first_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lived.append(tmp_path, [], {"sales": 2, "totals": 2})
    page = tmp_path / "out" / "report.html"
    report, _, _ = comparison(
        monkeypatch, tmp_path, SELLING, SELLING, limits=("keys>0",), to=str(page.parent)
    )
    assert report.unanswered == ["nothing is compared: history has no records, so it meets no limit"]
    body = page.read_text(encoding="utf-8").split("<body>")[1].lstrip()
    assert body.startswith('<p class="noise"><strong>Attention: nothing')


def test_the_worst_keys_are_traced_in_both_versions_around_their_first_event(
    sold: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    b = version(sold, "traced", (SOLD, planted(1_500, "self.cents += 1000")))
    report, (row,), _ = comparison(monkeypatch, sold, SELLING, b, to=str(tmp_path / "out"))
    (traced,) = report.traces
    assert (traced.name, traced.key) == ("Shop", row["key"])
    firsts = [one for side in (traced.a, traced.b) for one in side if one.is_first]
    assert [f"sales @{row['first_offset']}" in one.lines[0] for one in firsts] == [True, True]
    one, other = (next(line for line in each.lines if "cents: " in line) for each in firsts)
    before, after = re.findall(r"\d+", one)
    assert other == f"    cents: {before} → {int(after) + 1000}"
    assert [one.lines for one in traced.a[:2]] == [one.lines for one in traced.b[:2]]
    assert not traced.a[0].is_first
    page = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    assert f"cents: {before} → {int(after) + 1000}" in page


WINDOWS = """
import msgspec
import tailrace as tr
from tailrace import agg, windows
from tests.lab.selling import Sale, Total

app = tr.App("windows", partitions=2)
sales = app.topic("sales", Sale, key="shop", event_time="at", out_of_order=10)
sums = app.window("sums", sales, windows.tumbling("400ms"), agg.total(lambda sale: sale.cents))
totals = app.topic("totals", Total, key="shop")

@app.process(sums)
def closed(event: tr.Windowed[str, int], ctx: tr.Context[str]) -> None:
    ctx.emit(totals, Total(ctx.key, event.value))
"""


def test_outputs_of_a_window_part_at_the_event_that_it_has_taken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lived.append(tmp_path, shops.sales(120), {"sales": 2, "totals": 2})
    a, b = tmp_path / "sums_a.py", tmp_path / "sums_b.py"
    a.write_text(WINDOWS, encoding="utf-8")
    b.write_text(WINDOWS.replace("sale.cents)", "sale.cents + (sale.at == 1_500))"), encoding="utf-8")
    report, keys, outputs = comparison(monkeypatch, tmp_path, f"{a}:app", f"{b}:app")
    sale = next(one for one in lived.read(tmp_path, "sales") if one.timestamp_ms == 1_500)
    assert (report.noise, keys) == ([], [])
    assert [(one["key"].encode(), one["time"].timestamp()) for one in outputs] == [(sale.key, 1.599)]
    assert [(one["first_topic"], one["first_offset"]) for one in outputs] == [("sales", sale.offset)]
