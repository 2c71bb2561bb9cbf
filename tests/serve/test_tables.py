"""Tables that are asked by key: on a log in a folder. ``tests.kafka`` has the same on Kafka."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import msgspec
import pydantic
import pytest

import tailrace as tr
from tailrace.core.errors import OtherHistoryError
from tailrace.core.records import InputRecord, Output
from tailrace.core.values.partitioner import partition_of
from tailrace.log import TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.interface import StoredLog
from tailrace.serve.answers import Question, Questions
from tailrace.serve.followers import Follower, Followers
from tailrace.serve.tables import TableRestore, TableRows
from tailrace.serve.unanswered import Unanswered
from tailrace.state import MemoryStore, RocksStore, StateIdentity
from tests.cli.commands import done, run
from tests.runtime.processes import Running, wait_until
from tests.serve import tables_asked as laws
from tests.serve.asking import Asked, serving
from tests.serve.tables_asked import TILL, output, prepared
from tests.serve.test_serve_command import port_of
from tests.serve.till import PARTITIONS, Price, Revenue, Stock, app, revenues, sales


@pytest.fixture
def place(tmp_path: Path) -> str:
    return str(tmp_path / "log")


@pytest.fixture
def log(place: str) -> Iterator[StoredLog]:
    with closing(prepared(place)) as made:
        yield made


def test_server_client_and_command_say_of_every_key_what_a_dict_is(place: str) -> None:
    laws.check_that_all_say_what_a_dict_is(place)


def test_an_aborted_change_is_not_seen(place: str) -> None:
    laws.check_that_an_aborted_change_is_not_seen(place)


def test_a_key_in_another_partition_than_murmur2_s_is_refused_until_it_is_deleted_there(place: str) -> None:
    laws.check_misplaced(place)


def test_a_table_that_an_app_has_written_is_answered_while_it_is_down_also_from_a_copy_and_after_compaction(
    log: EmbeddedLog, place: str, tmp_path: Path
) -> None:
    log.append_all([Output("sales", b"ada", b'{"shop":"ada","euros":5}', 1)] * 3)
    log.append_all([Output("sales", b"bob", b'{"shop":"bob","euros":%d}' % n, 1) for n in (5, -5)])
    done("run", TILL, "--log", place, "--state", tmp_path / "state", "--until-end")
    options = ("--log", place, "--log-format", "json", "--http", "127.0.0.1:0", "--copy", tmp_path / "copy")
    for cleans in (True, False):
        with Running("serve", TILL, *options) as server:
            asked = Asked(port_of(server))
            asked.until_ready()
            laws.check_all(log, asked)
            said = asked.ask("/tables/revenues/ada").body
            assert said["value"] == {"shop": "ada", "euros": 15, "lastSeller": "nobody"}
            assert asked.ask("/tables/revenues/ada/lastSeller").body["value"] == "nobody"
            assert asked.ask("/tables/revenues/bob").status == 404
            server.signal(signal.SIGTERM)
            assert server.ended() == 0
        if cleans:
            log.append_all([output("revenues", Revenue("bob", 1)), output("prices", Price(3, 4))])
            before = log.end_offset("revenues", 0)
            log.clean()
            assert log.end_offset("revenues", 0) == before
            log.append_all([output("revenues", Revenue("bob", 1), deletes=True)])


def test_the_command_shows_value_and_position(log: StoredLog, place: str) -> None:
    log.append_all([output("stocks", Stock("a", 3, 9), 1_700_000_000_000)])
    shown = done("get", TILL, "stocks", '["a", 3]', "--log", place).out.splitlines()
    assert shown[0].startswith('stocks ["a",3]: partition ')
    assert shown[0].endswith("offset 1, set at 2023-11-14T22:13:20.000Z")
    assert shown[1] == '{"shop":"a","item":3,"left":9}'
    for field, value in (("left", "9"), ("shelf", '"none"')):  # which the record leaves out
        assert done("get", TILL, "stocks", '["a",3]', field, "--log", place).out.splitlines()[1] == value


@pytest.mark.parametrize(
    ("path", "status", "why"),
    [
        ("revenue/a", 404, "no table 'revenue'. Did you mean 'revenues'?"),
        ("Shop/a", 404, "no table 'Shop'"),
        ("sales/1", 404, "no table 'sales'"),
        ("revenues/a", 404, "no value of this key"),
        ("revenues", 404, "asks nothing"),
        ("revenues/a/euro", 404, "no field 'euro'. Did you mean 'euros'?"),
        ("revenues/a/shop/b", 404, "asks nothing"),
        ("prices/one", 400, "no key of type int"),
        ("stocks/%5B%22a%22%5D", 400, "no key of type tuple"),
        ("revenues/%ff", 400, "no key of type str"),
        ("revenues/a?limit=1", 400, "no argument 'limit' here"),
    ],
)
def test_a_wrong_question_gets_its_status_and_a_reason(
    log: StoredLog, place: str, path: str, status: int, why: str
) -> None:
    with serving(place, range(PARTITIONS), TILL) as asked:
        laws.until_read(log, asked)
        said = asked.ask(f"/tables/{path}")
        assert (said.status, why in said.body["error"]) == (status, True), said.body
        assert asked.ask("/tables/revenues/a", "POST").status == 405


def test_wrong_arguments_of_the_command_are_refused_with_the_names(log: StoredLog, place: str) -> None:
    for arguments, why in (
        (["Both", "1"], "has an actor and a table 'Both'"),
        (["revenue", "a"], "has no actor or table 'revenue'. Did you mean 'revenues'? There is"),
        (["revenues", "a", "euro"], "no field 'euro'"),
        (["revenues", "a", "euros", "x=1"], "no argument 'x' here"),
    ):
        ended = run("get", TILL, *arguments, "--log", place)
        assert ended.code != 0
        assert why in ended.err
    with serving(place, range(PARTITIONS), TILL) as asked:
        laws.until_read(log, asked)
        log.append_all([Output("Both", (1).to_bytes(8, "big"), b'{"item":1,"cents":2}', 1)])
        wait_until(lambda: asked.ask("/tables/Both/1").status == 200, "each has a path")


def test_a_client_refuses_a_topic_that_is_no_table_and_one_of_another_app(log: StoredLog, place: str) -> None:
    with tr.Client(app, place) as client:
        with pytest.raises(tr.UsageError, match="which is not a table"):
            client.get(sales, "a")  # type: ignore[call-overload]  # pyright: ignore[reportArgumentType, reportCallIssue]
        with pytest.raises(tr.UsageError, match="is not a topic of the app 'till'"):
            client.get(tr.App("other").table("revenues", Revenue), "a")


@pytest.mark.parametrize(
    ("key", "value", "why"),
    [
        (b"ada", b"{", "is no Revenue"),
        (b"ada", b'{"shop":"ada","euros":"many"}', "is no Revenue"),
        (b'"bob"', b'{"shop":"bob","euros":1}', "is not the key of the event"),
        (b"ada", b'{"shop":"bob","euros":1}', "is not the key of the event"),
    ],
)
def test_a_bad_record_is_an_error_that_names_it_and_never_an_older_value(
    log: StoredLog, place: str, key: bytes, value: bytes, why: str
) -> None:
    log.append_all([output("revenues", Revenue("ada", 5))])
    (ends,) = log.append_all([Output("revenues", key, value, 1)]).items()
    asked_key = "bob" if b"bob" in key else "ada"
    names = f"topic 'revenues', partition {ends[0].partition}, offset {ends[1] - 1}"
    ended = run("get", TILL, "revenues", asked_key, "--log", place)
    assert why in ended.err
    assert names in ended.err
    with serving(place, range(PARTITIONS), TILL) as asked, tr.Client(app, place) as client:
        with pytest.raises(tr.TailraceError, match=names):
            client.get(revenues, asked_key)
        laws.until_read(log, asked)
        said = asked.ask(f"/tables/revenues/{asked_key}")
        assert (said.status, why in said.body["error"], names in said.body["error"]) == (500, True, True)
        log.append_all([Output("revenues", key, None, 1)])
        laws.until_read(log, asked)
        laws.check_all(log, asked)


def misplaced(log: StoredLog, key: bytes | None, value: bytes | None) -> None:
    """A record in a partition that is not the key's."""
    number = next(n for n in range(PARTITIONS) if n != partition_of(key or b"", PARTITIONS))
    log.append_all([Output("revenues", key, value, 2)], number)


def test_a_process_for_some_partitions_answers_of_whole_tables(log: StoredLog, place: str) -> None:
    log.append_all([output("revenues", event) for event in laws.EVENTS["revenues"]])
    with serving(place, [0], TILL) as one, serving(place, [1, 2], TILL) as other:
        for asked in (one, other):
            asked.until_ready()
            laws.check_all(log, asked)


@pytest.mark.parametrize("key", [b"ada", None])
@pytest.mark.parametrize("deletes", [True, False])
@pytest.mark.parametrize("numbers", [[0], [1], [0, 1, 2]])
def test_a_newer_record_out_of_place_never_leaves_the_older_value(
    log: StoredLog, place: str, key: bytes | None, deletes: bool, numbers: list[int]
) -> None:
    log.append_all([output("revenues", Revenue("ada", 1)), output("revenues", Revenue("", 2))])
    misplaced(log, key, None if deletes else revenues.encode(Revenue("ada", 7)))
    with tr.Client(app, place) as client:
        for shop in ("ada", ""):
            with pytest.raises(tr.TailraceError, match="can be looked up for certain"):
                client.get(revenues, shop)
    with serving(place, numbers, TILL) as asked:
        wait_until(lambda: laws.asked_of(asked, "revenues", Revenue("ada", 0)).status != 503, "it is read")
        for shop in ("ada", ""):
            assert laws.asked_of(asked, "revenues", Revenue(shop, 0)).status == 500


def test_a_copy_of_a_lost_end_is_not_continued(place: str, tmp_path: Path) -> None:
    with closing(prepared(place)) as log:
        log.append_all([output("revenues", Revenue("bob", 1))])
    shutil.copytree(place, tmp_path / "backup")
    with closing(EmbeddedLog(place)) as log:
        log.append_all([output("revenues", Revenue(shop, 5)) for shop in ("ada", *map(str, range(20)))])
        kept = Kept(log, tmp_path / "copy")
        wait_until(kept.ready, "all is read")
        assert kept.asked("ada") == 5
        kept.all.close()
    shutil.rmtree(place)
    shutil.copytree(tmp_path / "backup", place)
    with closing(EmbeddedLog(place)) as log:
        log.append_all([output("revenues", Revenue(str(number), 6)) for number in range(100, 200)])
        kept = Kept(log, tmp_path / "copy")
        wait_until(kept.ready, "all is read")
        assert [kept.asked(shop) for shop in ("ada", "0", "bob", "100")] == [None, None, 1, 6]
        kept.all.close()


def test_a_copy_is_made_again_if_keys_are_declared_otherwise(log: StoredLog, tmp_path: Path) -> None:
    class Swapped(Revenue, frozen=True, rename="camel"):
        other: str = ""

    log.append_all([output("revenues", Revenue("ada", 5))])
    kept = Kept(log, tmp_path / "copy")
    wait_until(kept.ready, "all is read")
    kept.all.close()
    changed = tr.App("till", partitions=PARTITIONS)
    table = changed.table("revenues", Swapped, key="other")
    kept = Kept(log, tmp_path / "copy", changed)
    wait_until(kept.ready, "all is read")
    with pytest.raises(Unanswered, match="is not the key of the event"):
        kept.all.answer(Questions(changed.plan()).question(table.name, "ada", "", {}))
    kept.all.close()


def test_a_field_of_a_union_is_that_of_the_value_s_own_type() -> None:
    class First(msgspec.Struct, frozen=True, tag=True):
        k: tr.Key[str]
        cents: int = msgspec.field(name="amount")

    class Second(msgspec.Struct, frozen=True, tag=True):
        k: tr.Key[str]
        euros: int = msgspec.field(name="amount")

    union = tr.App("union", partitions=1)
    table = union.table("t", First | Second)
    rows = TableRows("union", table, 0, 1, MemoryStore())
    for offset, event in enumerate((First("a", 5), Second("b", 6))):
        rows.apply([InputRecord(offset, 1, table.encode_key(event), table.encode(event))])
    questions = Questions(union.plan())
    said = [rows.answer(questions.question("t", key, "amount", {}), b"", 2, 0, 0).value for key in "ab"]
    assert said == [5, 6]


def test_questions_are_described_with_their_types(place: str, log: StoredLog) -> None:
    with serving(place, range(PARTITIONS), TILL) as asked:
        described = asked.ask("/openapi.json").body
    assert {"/tables/revenues/{key}", "/tables/stocks/{key}/left"} <= set(described["paths"])
    answer = described["paths"]["/tables/revenues/{key}/euros"]["get"]["responses"]["200"]
    assert answer["content"]["application/json"]["schema"]["allOf"][1]["properties"] == {
        "value": {"type": "integer"}
    }
    assert "Revenue" in described["components"]["schemas"]


def test_the_page_shows_the_value_of_a_table_without_timers(log: StoredLog, place: str) -> None:
    log.append_all([output("revenues", Revenue("<ada>", 5)), output("stocks", Stock("a", 3, 9))])
    with serving(place, range(PARTITIONS), TILL) as asked:
        laws.until_read(log, asked)
        page = asked.ask("/keys?actor=revenues&key=%3Cada%3E").body.decode()
        assert "&lt;ada&gt;" in page
        assert "<option selected>revenues</option>" in page
        assert "History" not in page
        assert "Timers" not in page
        assert "&#34;left&#34;: 9" in asked.ask("/keys?actor=stocks&key=%5B%22a%22,3%5D").body.decode()
        assert asked.ask("/history?actor=revenues&key=a").status == 404
        assert asked.ask("/").status == 200


class Model(pydantic.BaseModel):
    name: str
    at: date = pydantic.Field(alias="on")


def test_a_model_is_shown_by_the_names_in_its_records() -> None:
    table = tr.App("models").table("models", Model, key="name")
    rows = TableRows("models", table, 0, 1, MemoryStore())
    rows.apply([InputRecord(4, 5, b"a", b'{"name":"a","on":"2024-05-01"}')])
    for name, value in (("", {"name": "a", "on": "2024-05-01"}), ("on", "2024-05-01")):
        assert rows.answer(Question(table, "a", 0, name), b"", 5, 0, 0).value == value


class Kept:
    """Followers with a copy on disk."""

    def __init__(self, log: StoredLog, folder: Path, of: tr.App = app) -> None:
        self._questions = Questions(of.plan())
        self.all = Followers(
            of.plan(),
            log,
            range(PARTITIONS),
            lambda _, number, table: RocksStore(
                folder / f"{table}.{number}", StateIdentity(f"till/{table}", number)
            ),
        )

    def asked(self, shop: str) -> Any:
        """The euros of a shop; None if there is none."""
        try:
            return self.all.answer(self._questions.question("revenues", shop, "euros", {})).value
        except Unanswered as error:
            if error.status != 404:
                raise
            return None

    @property
    def tables(self) -> list[Follower]:
        return [one for one in self.all.all if one.table is revenues]

    def ready(self) -> bool:
        for one in self.all.all:
            one.step()
        return all(one.age_ms is not None for one in self.all.reports())

    @property
    def applied(self) -> int:
        """Records read since it was opened."""
        return sum(one._standby.applied for one in self.tables if one._standby is not None)


def test_a_copy_continues_where_it_was(log: StoredLog, tmp_path: Path) -> None:
    log.append_all([output("revenues", Revenue(shop, 5)) for shop in laws.SHOPS if shop])
    for expected in (len(laws.SHOPS) - 1, 1):
        kept = Kept(log, tmp_path)
        wait_until(kept.ready, "it follows")
        assert kept.applied == expected
        assert kept.asked("ada") == 5
        kept.all.close()
        log.append_all([output("revenues", Revenue("bob", 5))])


def replaced(*_: object) -> None:
    raise OtherHistoryError("replaced", why="topic")


def test_while_it_is_read_again_no_key_is_taken_for_absent(
    log: StoredLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log.append_all([output("revenues", Revenue(f"shop {n}", n)) for n in range(6_000)])
    kept = Kept(log, tmp_path)
    wait_until(kept.ready, "it follows")
    before = kept.applied
    again = {*range(PARTITIONS)}

    def may_have_missed(restore: TableRestore, _at_end_ms: int, _now_ms: int) -> bool:
        has_missed = restore.partition in again
        again.discard(restore.partition)
        return has_missed

    monkeypatch.setattr(TableRestore, "may_have_missed", may_have_missed)
    monkeypatch.setattr(TableRestore, "_look", replaced)
    log.append_all([output("revenues", Revenue(f"shop {n}", n)) for n in range(6_000)])
    statuses = set[int]()

    def is_read() -> bool:
        kept.ready()
        try:
            assert kept.asked("shop 5999") == 5999 or again
        except Unanswered as error:
            statuses.add(error.status)
            return False
        return not again and kept.applied == 3 * before

    wait_until(is_read, "it is read again")
    assert statuses == {503}
    kept.all.close()


@pytest.mark.parametrize(
    "what", ["was away for long", "has lost its end", "is another one", "was deleted from"]
)
def test_a_copy_begins_again_if_it_is_not_one_of_the_log_any_more(
    log: EmbeddedLog, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    log.append_all([output("revenues", Revenue(shop, 5)) for shop in ["ada", *map(str, range(50))]])
    kept = Kept(log, tmp_path / "copy")
    wait_until(kept.ready, "it follows")
    kept.all.close()
    now: StoredLog = log
    if what == "was away for long":
        log.append_all([output("revenues", Revenue("ada", 5), deletes=True)])
        log.clean(deletions_kept_ms=0)
        log.clean(deletions_kept_ms=0)
        assert b"ada" not in laws.oracle(log, "revenues")
        monkeypatch.setattr("tailrace.serve.followers.system_clock", lambda: 1 << 50)
    elif what == "was deleted from":
        log.append_all([output("revenues", Revenue("ada", 5), deletes=True)] * 2)
        for number in range(PARTITIONS):
            log.delete_before("revenues", number, log.end_offset("revenues", number))
    else:
        now = prepared(str(tmp_path / "other"))
        some = ["bob"] if what == "has lost its end" else map(str, range(200, 400))
        now.append_all([output("revenues", Revenue(shop, 6)) for shop in some])
    kept = Kept(now, tmp_path / "copy")
    wait_until(kept.ready, "it follows")
    assert kept.asked("ada") is None
    kept.all.close()
    if now is not log:
        now.close()


def test_a_table_with_another_number_of_partitions_is_read_by_the_command_and_refused_by_the_server(
    place: str,
) -> None:
    with closing(EmbeddedLog(place)) as log:
        log.create_topic("revenues", TopicSettings(7, compacted=True))
        prepared(place).close()
        log.append_all([output("revenues", Revenue("ada", 5))])
        (said,) = laws.got(place, "revenues", Revenue("ada", 0)).lines
        assert said["value"]["euros"] == 5
        with serving(place, range(PARTITIONS), TILL) as asked:
            wait_until(
                lambda: "has 7 partitions" in str(asked.ask("/tables/revenues/ada").body), "it says why"
            )
            assert asked.ask("/tables/revenues/ada").status == 503
