"""``tailrace run`` on events that it cannot handle: what it tells of them, and how it ends."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.cli import shop
from tests.cli.commands import SHOP, Ended, done, run
from tests.cli.shop import Purchase

TOTAL = "went to the dead letters in this run"


pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    done("topics", "apply", "--app", SHOP, "--log", tmp_path / "log")
    return tmp_path / "log"


def append(path: Path, *purchases: Purchase) -> None:
    lines = b"\n".join(map(shop.purchases.encode, purchases))
    done("log", "append", "purchases", "--app", SHOP, "--log", path, stdin=lines)


def append_unlucky(path: Path, count: int = 4) -> None:
    append(path, *(Purchase(f"customer-{number}", 1_000 + number, 13) for number in range(count)))


def served(path: Path, *more: object) -> Ended:
    where = ("--log", path, "--state", path.parent / "state", "--log-format", "json")
    return run("run", SHOP, *where, "--end-of-input", "--after-end", *more)


def warnings(ended: Ended) -> list[dict[str, Any]]:
    lines = [msgspec.json.decode(line) for line in ended.err.splitlines() if line.startswith("{")]
    return [line for line in lines if line["logger"] == "tailrace.dead_letters"]


@pytest.mark.parametrize("workers", [1, 2])
def test_a_bounded_run_that_made_dead_letters_says_how_many_and_by_whom_and_exits_with_three(
    path: Path, workers: int
) -> None:
    append_unlucky(path)
    append(path, Purchase("d", 5, 1, "timer"))
    done("log", "append", "purchases", "--log", path, stdin=b'{"customer": 1}')
    ended = served(path, "--workers", workers)
    assert ended.code == 3
    first, *_ = [one for one in warnings(ended) if one.get("handler") == "Customer.bought"]
    assert "the first of Customer.bought (ValueError) in this run: ValueError: 13 brings" in first["message"]
    assert first["traceback"].startswith("Traceback (most recent call last):\n")
    assert 'raise ValueError(f"{purchase.cents} brings bad luck")' in first["traceback"]
    assert "engine" not in first["traceback"]
    (total,) = [one for one in warnings(ended) if TOTAL in one["message"]]
    by = "Customer.bought (ValueError) 4, Customer.failed (RuntimeError) 1, purchases (wrong-type) 1"
    assert total["message"] == f"6 events {TOTAL}: {by}"
    assert len([one for one in warnings(ended) if "the first of" in one["message"]]) == 3
    last = msgspec.json.decode(ended.err.splitlines()[-1])
    assert (last["level"], last["exit_code"]) == ("error", 3)
    assert last["message"] == (
        f"6 events {TOTAL}: {by}. See `tailrace dead-letters list shop --log {path}`; "
        "with --allow-dead-letters the exit code is 0."
    )


def test_the_dead_letters_of_a_run_are_its_own(path: Path) -> None:
    append_unlucky(path)
    assert served(path).code == 3
    ended = served(path)
    assert (ended.code, warnings(ended)) == (0, [])
    append_unlucky(path, 1)
    ended = served(path)
    assert ended.code == 3
    assert f"1 event {TOTAL}" in ended.err


def test_dead_letters_can_be_allowed_and_are_still_told_of(path: Path) -> None:
    append_unlucky(path)
    ended = served(path, "--allow-dead-letters")
    assert ended.code == 0
    assert any(TOTAL in one["message"] for one in warnings(ended))


def test_a_replay_and_a_rebuild_tell_nothing_again(path: Path, tmp_path: Path) -> None:
    append_unlucky(path)
    assert served(path).code == 3
    again = run("replay", SHOP, "--log", path, "--compare", "--state", tmp_path / "state")
    assert again.code == 0, again.err
    made = run("rebuild", SHOP, "--log", path, "--to", tmp_path / "made", "--workers", 1)
    assert made.code == 0, made.err
    assert "dead letters" not in again.err + made.err
    ended = served(path)
    assert (ended.code, warnings(ended)) == (0, [])


def test_a_mistake_in_the_code_stops_the_run_and_makes_no_dead_letters(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    append_unlucky(path, 1)
    assert served(path).code == 3
    append_unlucky(path, 20)
    monkeypatch.setattr(shop, "REFUSED", None)  # "in None" is a TypeError of the handler's own
    ended = served(path)
    assert ended.code == 1
    assert "in spite of" in ended.err
    assert not any(TOTAL in one["message"] for one in warnings(ended))
