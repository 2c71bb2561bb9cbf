"""The first event from which a key parts is the first that was handled, and concerns this key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.core.values.partitioner import partition_of
from tests.history.rebuilding import lived, shops
from tests.lab.in_process import comparison
from tests.lab.selling import version


class Post(msgspec.Struct):
    """As the app has it."""

    author: str
    at: int
    words: int
    reader: str


_APP = """
import msgspec

import tailrace as tr


class Post(msgspec.Struct):
    author: str
    at: int
    words: int
    reader: str


class Note(msgspec.Struct):
    reader: str
    words: int


app = tr.App("posting", partitions=1)
posts = app.topic("posts", Post, key="author", event_time="at", out_of_order="10s")
notes = app.topic("notes", Note, key="reader")


@app.actor
class Author(tr.Actor):
    words: int = 0

    @tr.process(posts)
    def posted(self, event: Post, ctx: tr.Context[str]) -> None:
        {handler}


@app.actor
class Reader(tr.Actor):
    words: int = 0

    @tr.on_message
    def noted(self, note: Note, ctx: tr.Context[str]) -> None:
        self.words += note.words
"""


def versions(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    handlers: tuple[str, str],
    *posts: tuple[str, int, int, str],
    app: str = _APP,
) -> tuple[str, list[dict[str, Any]], list[dict[str, Any]]]:
    """The order of a comparison of two handlers over posts (author, second, words, reader), and its tables."""
    made = [Post(author, at * 1000, words, reader) for author, at, words, reader in posts]
    lived.append(
        folder,
        [Output("posts", one.author.encode(), msgspec.json.encode(one), one.at) for one in made],
        {"posts": 1, "notes": 1},
    )
    names = [f"{name}_of_{folder.name}" for name in "ab"]
    for name, handler in zip(names, handlers, strict=True):
        (folder / f"{name}.py").write_text(app.replace("{handler}", handler))
    report, keys, outputs = comparison(monkeypatch, folder, *(f"{folder / one}.py:app" for one in names))
    return report.order, keys, outputs


def place(row: dict[str, Any]) -> tuple[str, int | None, int]:
    """Where a key has parted, in seconds."""
    return row["first_topic"], row["first_offset"], round(row["first_time"].timestamp())


def test_of_two_events_out_of_order_it_is_the_one_that_was_handled_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A sends a note of the first, B of neither; both of the others."""
    handlers = [
        f"self.words += 1\n        if event.words >= {least}:\n"
        "            ctx.emit(notes, Note(event.author, event.words))"
        for least in (5, 7)
    ]
    posts = ("x", 10, 5, ""), ("x", 9, 9, ""), ("x", 20, 9, "")
    _, keys, outputs = versions(tmp_path, monkeypatch, (handlers[0], handlers[1]), *posts)
    assert keys == []
    assert [(one["kind"], place(one)) for one in outputs] == [("only-a", ("posts", 0, 10))]


def test_messages_to_other_keys_are_no_events_of_a_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """B sends one more to q at 10 s, and another one to p at 40 s. They are not recorded, so they have no offset."""
    send = "ctx.send(Reader, event.reader, Note(event.reader, event.words{more}))"
    more = "\n        if event.at == 10_000:\n            ctx.send(Reader, 'q', Note('q', 1))"
    handlers = send.format(more=""), send.format(more=" + (event.at == 40_000)") + more
    posts = [("x", 10 * (number + 1), 5, reader) for number, reader in enumerate("qpppp")]
    order, keys, _ = versions(tmp_path, monkeypatch, handlers, *posts)
    assert order == "stages"
    assert {(one["actor"], one["key"]): place(one) for one in keys} == {
        ("Reader", "q"): ("posting.inbox", None, 10),
        ("Reader", "p"): ("posting.inbox", None, 40),
    }
    assert (
        "posting.inbox partition 0, 1970-01-01 00:00:40.000"
        in (tmp_path / "ab-0" / "report.html").read_text()
    )


@pytest.mark.parametrize("messages", [False, True])
def test_outputs_with_the_key_of_another_have_one_if_all_keys_are_run(
    messages: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If only some keys are, not all that has sent them is seen, and an event could be named that is not the first."""
    emit = "\n        if {when}:\n            ctx.emit(notes, Note(event.reader, event.words))"
    handlers = (
        "self.words += 1" + emit.format(when="True"),
        "self.words += 1 + (event.author == 'k2')" + emit.format(when="event.words != 8"),
    )
    posts = ("k1", 10, 8, "p"), ("k2", 20, 8, "p"), ("k1", 30, 5, "p"), ("k2", 40, 5, "p")
    app = _APP if messages else _APP.split("\n\n\n@app.actor\nclass Reader", maxsplit=1)[0]
    _, keys, outputs = versions(tmp_path, monkeypatch, handlers, *posts, app=app)
    assert [(one["key"], place(one)) for one in keys] == [("k2", ("posts", 1, 20))]
    assert [(one["key"], one["kind"]) for one in outputs] == [("p", "only-a"), ("p", "only-a")]
    assert [place(one) if one["first_topic"] else None for one in outputs] == [
        ("posts", 0, 10) if messages else None
    ] * 2


_LEDGER = '''class Note(msgspec.Struct):
    """Of a sale."""

    at: int


@app.actor
class Ledger(tr.Actor):
    """Counts."""

    count: int = 0

    @tr.on_message
    def noted(self, note: Note, ctx: tr.Context[str]) -> None:
        """Count."""
        self.count += 1


@app.actor
class Shop('''


@pytest.mark.parametrize("sender", ["a", "b"])
def test_first_events_are_found_if_only_one_version_sends_messages(
    sender: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It runs all partitions as one, the other one by one."""
    sales = shops.sales(120)
    lived.append(tmp_path, sales, {"sales": 2, "totals": 2})
    planted, shop_of = dict[str, int](), {one.timestamp_ms: one.key or b"" for one in sales}
    for at in sorted(shop_of)[40:]:
        planted.setdefault(shop_of[at].decode(), at)
    first = min(at for at, shop in shop_of.items() if shop == b"shop-0")
    assert planted.pop("shop-0") > first
    assert {partition_of(one.encode(), 2) for one in planted} == {0, 1}
    sold = "self.cents += event.cents"
    changed = f"{sold} + 1000 * (event.at in {sorted(planted.values())})"
    noted = f'{sold}\n        if event.shop == "shop-0":\n            ctx.send(Ledger, "all", Note(event.at))'
    sends = (("@app.actor\nclass Shop(", _LEDGER), (sold, noted))
    a = version(tmp_path, f"sold_{sender}", *(sends if sender == "a" else ()))
    b = version(tmp_path, f"resold_{sender}", *(sends if sender == "b" else ()), (sold, changed))
    report, keys, outputs = comparison(monkeypatch, tmp_path, a, b)
    assert report.order == "stages"
    offsets = {one.timestamp_ms: one.offset for one in lived.read(tmp_path, "sales")}
    found = {one["key"]: one for one in keys if one["field"] == "cents"}
    assert len(keys) == len(found) + 1  # and the count of the ledger
    assert found.keys() == planted.keys()
    for row in (*found.values(), *outputs):
        place = row["first_topic"], row["first_offset"], round(row["first_time"].timestamp() * 1000)
        assert place == ("sales", offsets[planted[row["key"]]], planted[row["key"]])


_FORWARDED = """
import msgspec

import tailrace as tr


class Post(msgspec.Struct):
    author: str
    at: int
    words: int
    reader: str


app = tr.App("posting", partitions=1)
posts = app.topic("posts", Post, key="author", event_time="at", out_of_order="60s")
by_reader = app.topic("by-reader", Post, key="reader", event_time="at")


@app.process(posts, order="event-time")
def forward(event: Post, ctx: tr.Context[str]) -> None:
    {handler}


@app.actor
class Reader(tr.Actor, order="event-time"):
    read: int = 0

    @tr.process(by_reader)
    def posted(self, event: Post, ctx: tr.Context[str]) -> None:
        self.read += 1
"""


def test_an_event_that_one_version_has_alone_is_first_although_the_other_has_fewer_before_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    emit = "ctx.emit(by_reader, event)"
    posts = [
        ("s", 1, 0, "ann"),
        ("s", 2, 0, "bob"),
        ("s", 3, 1, "bob"),
        ("s", 4, 1, "ann"),
        ("s", 900, 1, "z"),
    ]
    handlers = emit, f"if event.words:\n        {emit}"
    order, keys, _ = versions(tmp_path, monkeypatch, handlers, *posts, app=_FORWARDED)
    assert order == "stages"
    assert {one["key"]: place(one)[2] for one in keys} == {"ann": 1, "bob": 2}
