"""``tailrace schemas``: the lock of the example services, changes that break, and what the commands answer."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import SHOP, done, refused, run

LOCK = Path(__file__).parents[2] / "schemas" / "schemas.lock.json"
SERVICES = [
    f"services.{name}:app"
    for name in (
        *("sensors", "forwarder", "count_with_timeout", "shapes", "flights.aircraft", "flights.airport"),
        *("flights.delays", "rooms", "words", "stocks", "threes", "fraud", "lab.forecast"),
    )
]


MORE = ["delays", "rooms", "words", "stocks", "threes", "fraud", "forecast"]


def test_the_lock_of_the_example_services_is_what_they_declare(tmp_path: Path) -> None:
    done("schemas", "lock", *SERVICES, "--lock", tmp_path / "lock")
    assert (tmp_path / "lock").read_text() == LOCK.read_text()
    (found,) = done("schemas", "check", *SERVICES, "--lock", LOCK, "--mode", "full", "--json").lines
    assert found == {
        "mode": "full",
        "apps": ["sensors", "forwarder", "count-with-timeout", "shapes", "aircraft", "airport", *MORE],
        "breaks": [],
        "changed": [],
    }


OPTIONAL = '{"name": "cents", "type": {"kind": "union", "of": [{"kind": "int"}, {"kind": "None"}]}, "required": true}'


def changed_lock(path: Path, field: str, by: str) -> Path:
    """The lock of the shop, as if a field had been declared in another way."""
    done("schemas", "lock", SHOP, "--lock", path)
    text = path.read_text()
    assert field in text
    path.write_text(text.replace(field, by))
    return path


@pytest.mark.parametrize(
    ("by", "mode", "code"),
    [
        ('{"name": "cents", "type": {"kind": "str"}, "required": true}', "backward", 1),
        (OPTIONAL, "backward", 1),
        (OPTIONAL, "forward", 0),
        (OPTIONAL, "full", 1),
        ('{"name": "cents", "type": {"kind": "bool"}, "required": true}', "forward", 1),
    ],
)
def test_the_exit_code_says_whether_a_change_is_compatible(
    tmp_path: Path, by: str, mode: str, code: int
) -> None:
    cents = '{"name": "cents", "type": {"kind": "int"}, "required": true}'
    path = changed_lock(tmp_path / "lock", cents, by)
    ended = run("schemas", "check", SHOP, "--lock", path, "--mode", mode)
    assert ended.code == code, ended
    assert (f"compatible ({mode})" in ended.out.splitlines()[-1]) == (code == 0)
    if code:
        assert "topic purchases, Purchase.cents, as the" in ended.out
    else:
        assert f"Types of shop have changed: write {path} again" in ended.err


def test_a_lock_keeps_the_apps_that_are_not_written(tmp_path: Path) -> None:
    done("schemas", "lock", SHOP, "--lock", tmp_path / "lock")
    done("schemas", "lock", SERVICES[0], "--lock", tmp_path / "lock")
    assert list(msgspec.json.decode((tmp_path / "lock").read_bytes())["apps"]) == ["sensors", "shop"]
    done("schemas", "check", SHOP, SERVICES[0], "--lock", tmp_path / "lock")


def test_a_lock_that_is_missing_or_without_the_app_is_refused(tmp_path: Path) -> None:
    assert "there is no lock" in refused("schemas", "check", SHOP, "--lock", tmp_path / "none")
    ended = run("schemas", "lock", SHOP, "--lock", tmp_path / "none" / "lock")
    assert (ended.code, "cannot be written: No such file" in ended.err) == (2, True)
    assert "does not have the app 'shop'" in refused("schemas", "check", SHOP, "--lock", LOCK)
