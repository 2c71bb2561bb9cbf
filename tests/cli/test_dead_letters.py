"""``tailrace dead-letters``: list, show, redrive, drop, on what a real run could not handle."""

from __future__ import annotations

import re
import time
from contextlib import closing

import msgspec
import pytest

from tailrace.core.records import Output
from tailrace.core.unit_ids import RecordIds
from tailrace.log.embedded import EmbeddedLog
from tests.cli import shop
from tests.cli.commands import SHOP, TO_THE_END, done, records, run
from tests.cli.shop import Purchase

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture
def ran(tmp_path):
    """A run over three purchases that cannot be handled, one that can, one that is no purchase, one timer
    that fails.
    """
    path = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", path)
    failing = [Purchase("a", 1, 13), Purchase("b", 2, 13), Purchase("c", 4, 13), Purchase("d", 5, 1, "timer")]
    lines = b"\n".join(map(shop.purchases.encode, [*failing, Purchase("a", 3, 4)]))
    done("log", "append", "purchases", "--app", SHOP, "--log", path, stdin=lines)
    log = EmbeddedLog(path)
    log.append("purchases", b"e", b"no purchase", 5, (("trace", b"7"),))
    log.close()
    go(path)
    return path


def go(path):
    done("run", SHOP, *TO_THE_END, "--allow-dead-letters", "--log", path, "--state", path.parent / "state")


def listed(path, *arguments):
    return done("dead-letters", "list", "shop", "--json", *arguments, "--log", path).lines


def redrive(path, *arguments):
    return msgspec.json.decode(done("dead-letters", "redrive", SHOP, "--json", *arguments, "--log", path).out)


def totals(path):
    return sorted(record.value for _, record in records(path, "totals"))


def test_dead_letters_are_listed_with_reason_and_origin(ran) -> None:
    found = listed(ran)
    assert sorted((one["reason"], one["topic"] or "a timer") for one in found) == [
        ("handler-failed", "a timer"),
        ("handler-failed", "purchases"),
        ("handler-failed", "purchases"),
        ("handler-failed", "purchases"),
        ("undecodable", "purchases"),
    ]
    assert len(listed(ran, "--reason", "undecodable")) == 1
    text = done("dead-letters", "list", "shop", "--log", ran)
    assert "ValueError: 13 brings bad luck" in text.out
    assert "timer of Customer" in text.out
    assert text.err.splitlines() == ["5 open dead letters: 4 handler-failed, 1 undecodable."]


def test_a_dead_letter_is_shown_with_its_record_and_traceback(ran) -> None:
    id_ = next(one["id"] for one in listed(ran) if one["key"] == "b")
    shown = done("dead-letters", "show", SHOP, id_, "--log", ran).out
    assert "reason:   handler-failed" in shown
    assert "handler:  Customer.bought" in shown
    assert "key:      b" in shown
    assert '"cents":13' in shown
    assert "closed:   no" in shown
    assert "brings bad luck" in shown.splitlines()[-1]
    assert "Traceback" in shown
    (said,) = done("dead-letters", "show", SHOP, id_, "--json", "--log", ran).lines
    assert said["record"]["value"]["cents"] == 13
    assert said["origin_offset"] is not None


def test_what_a_terminal_would_obey_is_shown_and_not_sent(ran) -> None:
    with closing(EmbeddedLog(ran)) as log:
        log.append("purchases", b"\xc2\x9b2J", b"\x1b\x7f\xc2\x9b31m", 6, (("h\u009b", b"\xc2\x85"),))
    go(ran)
    (id_,) = (one["id"] for one in listed(ran) if one["record"].get("key") == "\u009b2J")
    for command in (("list", "shop"), ("show", SHOP, id_)):
        for form in ((), ("--json",)):
            text = done("dead-letters", *command, *form, "--log", ran).out
            assert all(line.isprintable() for line in text.split("\n")), (command, form)


def test_what_is_redriven_is_handled_once_however_often_it_is_asked_for(ran, monkeypatch) -> None:
    before = totals(ran)
    monkeypatch.setattr(shop, "REFUSED", set())
    first = redrive(ran, "--reason", "handler-failed")
    assert (len(first["done"]), first["before"], len(first["without_record"])) == (3, [], 1)
    again = redrive(ran, "--reason", "handler-failed")
    assert (again["done"], sorted(again["before"])) == ([], sorted(first["done"]))
    go(ran)
    # Event time has gone on, and the topic routes late events: redriven ones are handled all the same.
    assert len(totals(ran)) == len(before) + 3
    assert b'{"customer":"a","cents":17}' in totals(ran)
    assert len(listed(ran)) == 2
    assert len(listed(ran, "--all")) == 5


def test_a_redriven_record_is_the_original_and_says_that_it_was(ran) -> None:
    (letter,) = listed(ran, "--reason", "undecodable")
    assert redrive(ran, "--id", letter["id"])["done"] == [letter["id"]]
    ((number, first),) = [
        (number, record) for number, record in records(ran, "purchases") if record.value == b"no purchase"
    ]
    ((_, again),) = records(ran, "shop.inbox")
    said = {"letter": letter["id"], "input": "purchases", "partition": number, "offset": first.offset}
    (name, value), *rest = again.headers
    unit = RecordIds("purchases", number, None).id_of(first).hex()
    assert (name, msgspec.json.decode(value), rest) == (
        "tailrace-redriven",
        said | {"unit": unit},
        [("trace", b"7")],
    )
    assert again[1:4] == first[1:4]  # timestamp, key, value


def test_a_record_that_fails_again_makes_another_letter_that_can_be_redriven(ran) -> None:
    (letter,) = listed(ran, "--reason", "undecodable")
    redrive(ran, "--id", letter["id"])
    go(ran)
    (new,) = listed(ran, "--reason", "undecodable")
    assert new["id"] != letter["id"]
    assert redrive(ran, "--id", new["id"])["done"] == [new["id"]]
    assert (new["topic"], new["origin_offset"]) == (letter["topic"], letter["origin_offset"])
    found = sorted(one.headers for _, one in records(ran, "shop.inbox"))
    assert [[name for name, _ in one] for one in found] == [["tailrace-redriven", "trace"]] * 2


def test_a_letter_says_when_it_was_redriven_or_dropped(ran) -> None:
    before = time.time_ns() // 1_000_000
    letter, other, *_ = [one for one in listed(ran, "--reason", "handler-failed") if one["topic"] is not None]
    assert (letter["closed"], letter["closed_ms"]) == (None, None)
    redrive(ran, "--id", letter["id"])
    said = done("dead-letters", "drop", SHOP, "--id", other["id"], "--log", ran).out
    assert said == "1 dead letter was dropped.\n"
    found = {one["id"]: one for one in listed(ran, "--all")}
    assert (found[letter["id"]]["closed"], found[other["id"]]["closed"]) == ("redriven", "dropped")
    assert before <= found[letter["id"]]["closed_ms"] <= time.time_ns() // 1_000_000
    text = done("dead-letters", "list", "shop", "--all", "--log", ran)
    assert re.search(r"redriven 20\S+Z", text.out)
    assert text.err.startswith("5 dead letters: ")
    shown = done("dead-letters", "show", SHOP, other["id"], "--log", ran).out
    assert re.search(r"closed:   dropped 20\S+Z", shown)
    assert not redrive(ran, "--id", other["id"])["done"]


def test_a_letter_of_a_timer_cannot_be_redriven_but_dropped(ran) -> None:
    (letter,) = [one for one in listed(ran) if one["timer"] is not None]
    said = done("dead-letters", "redrive", SHOP, "--id", letter["id"], "--log", ran).out
    assert "which have no record to handle again" in said
    assert letter["id"] in {one["id"] for one in listed(ran)}
    done("dead-letters", "drop", SHOP, "--id", letter["id"], "--log", ran)
    assert letter["id"] not in {one["id"] for one in listed(ran)}


def test_a_dry_run_changes_nothing(ran) -> None:
    before = done("log", "list", "--json", "--log", ran).out
    would = redrive(ran, "--all", "--dry-run")
    assert len(would["done"]) == 4
    assert done("log", "list", "--json", "--log", ran).out == before
    said = done("dead-letters", "redrive", SHOP, "--all", "--dry-run", "--log", ran).out
    assert said.startswith("4 dead letters would be redriven.\n1 dead letter came from timers")


def test_a_record_without_a_key_goes_back_to_its_task(tmp_path) -> None:
    path = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", path)
    log = EmbeddedLog(path)
    log.append_all([Output("purchases", None, b"x", 5)], 1)
    log.close()
    go(path)
    redrive(path, "--all")
    assert [number for number, _ in records(path, "shop.inbox")] == [1]


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["drop", "shop"], 2, "Name the dead letters: --id, --reason, or --all."),
        (["redrive", "shop", "--all", "--id", "0-1"], 2, "--all goes with neither"),
        (["redrive", "shop", "--id", "17"], 2, "'17' is not the id of a dead letter, such as 2-17."),
        (["redrive", "shop", "--id", "0-99"], 1, "there is no dead letter 0-99"),
        (["show", "shop", "0-99"], 1, "there is no dead letter 0-99"),
        (["show", "shop", "99-0"], 1, "there is no dead letter 99-0"),
        (["show", "shop", "x"], 2, "not the id of a dead letter"),
    ],
)
def test_wrong_arguments_are_told_in_one_line(tmp_path, arguments, code, said) -> None:
    path = tmp_path / "log"
    done("topics", "apply", "--app", SHOP, "--log", path)
    ended = run("dead-letters", *arguments, "--log", path)
    assert ended.code == code
    (line,) = ended.err.splitlines()
    assert said in line
