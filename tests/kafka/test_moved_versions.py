"""Wherever an app moves, the versions of its code go with it: one that was replaced is refused on each log on Kafka."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from tests.cli.commands import done, run

FIRST, SECOND = (f"tests.kafka.versions.{name}:app" for name in ("first", "second"))
KEYS = [f"k{number}" for number in range(8)]

pytestmark = pytest.mark.usefixtures("quiet_logs")


class Visits:
    """The app, on one log after the other."""

    def __init__(self, folder: Path, log: object) -> None:
        self.folder, self.log, self.fed = folder, log, 0
        done("log", "create", "--app", FIRST, "--log", log)

    def feed(self) -> None:
        """One event of each key."""
        self.fed += 1
        lines = b"\n".join(msgspec.json.encode({"key": key, "at_ms": self.fed}) for key in KEYS)
        done("log", "append", "came", "--app", FIRST, "--log", self.log, stdin=lines)

    def serve(self, app: str, *options: str) -> None:
        """Each event is counted once; the last ones by this version."""
        self.feed()
        done(*self._run(app, *options))
        dumped = [line["value"] for line in done("log", "dump", "visited", "--log", self.log).lines]
        assert sorted((one["key"], one["count"]) for one in dumped) == [
            (key, count) for key in KEYS for count in range(1, self.fed + 1)
        ]
        assert {one["version"] for one in dumped if one["count"] == self.fed} == {1 if app == FIRST else 2}

    def refuses(self, app: str) -> None:
        ended = run(*self._run(app))
        assert ended.code == 1, ended
        assert "has replaced version" in ended.err
        assert "--downgrade" in ended.err

    def move(self, app: str, log: object) -> None:
        (found,) = done("migrate", "--from", self.log, "--to", log, "--app", app, "--json", "--check").lines
        assert found["done"]
        self.log = log

    def _run(self, app: str, *options: str) -> list[object]:
        return ["run", app, "--until-end", "--log", self.log, "--state", self.folder / "state", *options]


@pytest.fixture(params=["embedded", "another prefix"])
def other(request: pytest.FixtureRequest, kafka_url: str, tmp_path: Path) -> object:
    """A log to move to."""
    return tmp_path / "log" if request.param == "embedded" else f"{kafka_url}other."


def test_a_version_that_was_replaced_elsewhere_is_refused_after_the_return(
    kafka_url: str, other: object, tmp_path: Path
) -> None:
    visits = Visits(tmp_path, f"{kafka_url}one.")
    home = visits.log
    visits.serve(FIRST)
    visits.move(FIRST, other)
    visits.serve(SECOND)
    visits.move(SECOND, home)
    visits.refuses(FIRST)
    visits.serve(SECOND)
    visits.refuses(FIRST)
    visits.serve(FIRST, "--downgrade")
    visits.refuses(SECOND)


def test_who_went_back_elsewhere_continues_after_the_return(
    kafka_url: str, other: object, tmp_path: Path
) -> None:
    visits = Visits(tmp_path, f"{kafka_url}one.")
    home = visits.log
    visits.serve(FIRST)
    visits.serve(SECOND)
    visits.move(SECOND, other)
    visits.serve(FIRST, *(("--downgrade",) if "kafka" in str(other) else ()))
    visits.move(FIRST, home)
    visits.refuses(SECOND)
    visits.serve(FIRST)
