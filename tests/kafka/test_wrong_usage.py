"""Wrong usage has the exit code 2 on Kafka and on the embedded log, in one line on standard error, and changes nothing."""

from __future__ import annotations

from pathlib import Path
from secrets import token_hex

import msgspec
import pytest

from tests.cli.commands import SHOP, done, run

STATE = ("--state", "{state}", "--end-of-input", "--after-end")
TO = ("--to", "{made}")
ON_BOTH = [
    (("run", SHOP, *STATE, "--workers", "99"), "at most 3 workers have something to do"),
    (("run", SHOP, *STATE, "--as", "a b"), "'a b' cannot be the name of an app"),
    (("run", SHOP, *STATE, "--as", "shop"), "is already the name of"),
    (("run", SHOP, *STATE, "--replace-state"), "--from-snapshot"),
    (("run", f"{SHOP}@a b", *STATE), "'a b' cannot be the name of an app"),
    (("replay", SHOP, "--partition", "99"), "--partition"),
    (("replay", SHOP, "--until-offset", "nosuch=1"), "does not read 'nosuch'"),
    (("replay", SHOP, "--until-offset", "purchases=99"), "is outside the log"),
    (("rebuild", SHOP, *TO, "--outputs", "csv:x"), "outputs cannot go to 'csv:x'"),
    (("rebuild", SHOP, *TO, "--until", "2050-01-01"), "is outside the log"),
    (("rebuild", SHOP, *TO, "--until-offset", "purchases=99"), "is outside the log"),
    (("replay", SHOP, "--until-offset", "purchases:99=1"), "has no partition 99"),
    (("dead-letters", "list", "nosuch"), "no dead letters of an app 'nosuch'"),
    (("dead-letters", "show", "nosuch", "0-0"), "no dead letters of an app 'nosuch'"),
    (("dead-letters", "redrive", "nosuch", "--all"), "no dead letters of an app 'nosuch'"),
    (("dead-letters", "redrive", "shop"), "Name the dead letters"),
    (("retire", "nosuch"), "nosuch"),
    (("topics", "delete", "--app", "nosuch", "--yes"), ""),
    (("log", "create", "a b"), "cannot be the name of a topic"),
    (("log", "tail", "purchases", "--partition", "99"), "has 3 partitions"),
    (("log", "dump", "purchases", "--partition", "99"), "has 3 partitions"),
    (("snapshot", "create", SHOP, "--snapshots", ""), "it is empty"),
    (
        ("snapshot", "create", SHOP, "--snapshots", "{made}", "--name", "a/b"),
        "cannot be the name of a snapshot",
    ),
]
"""Arguments, and a part of the message."""


@pytest.fixture(scope="module")
def places(kafka: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """By kind, a log on which the shop has run."""
    folder = tmp_path_factory.mktemp("usage")
    found = {"embedded": str(folder / "log"), "kafka": f"kafka://{kafka}/usage-{token_hex(6)}."}
    for name, place in found.items():
        done("topics", "apply", "--app", SHOP, "--log", place)
        done("run", SHOP, "--end-of-input", "--after-end", "--log", place, "--state", folder / name)
    return found


def refused(*arguments: object) -> str:
    ended = run(*arguments)
    assert ended.code == 2, (ended.out, ended.err)
    (line,) = ended.err.splitlines()
    if arguments[0] == "run" and line.startswith("{"):  # as its log
        said = msgspec.json.decode(line)
        assert (said["level"], said["exit_code"]) == ("error", 2)
        return str(said["message"])
    assert line.startswith("tailrace: ")
    return line


@pytest.mark.parametrize("kind", ["embedded", "kafka"])
@pytest.mark.parametrize(("arguments", "said"), ON_BOTH, ids=[" ".join(one) for one, _ in ON_BOTH])
def test_wrong_usage_is_the_same_on_every_log(
    places: dict[str, str], tmp_path: Path, kind: str, arguments: tuple[str, ...], said: str
) -> None:
    made, state = tmp_path / "made", tmp_path / "state"
    given = [one.format(made=made, state=state) for one in arguments]
    assert said.format(made=made) in refused(*given, "--log", places[kind])
    assert not list(made.glob("*/*/manifest.json"))
    assert not state.exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "2"), "Start the service several times"),
        (("--from-snapshot", "snapshots"), "needs the name or id of a snapshot"),
        (("--commit-interval", "50s"), "Kafka aborts a transaction that is open for 1m"),
    ],
)
def test_options_of_run_that_are_not_for_kafka(
    places: dict[str, str], tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    options = ("--log", places["kafka"], "--state", tmp_path / "state", "--end-of-input", "--after-end")
    assert said in refused("run", SHOP, *options, *arguments)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("kind", ["embedded", "kafka"])
def test_an_app_cannot_be_moved_to_the_log_that_it_lives_on(places: dict[str, str], kind: str) -> None:
    log = places[kind]
    assert "are the same log" in refused("migrate", "--from", log, "--to", log, "--app", SHOP)


def test_settings_of_kafka_that_cannot_be_used_are_refused(
    places: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in (("ACKS", "1"), ("NO_SUCH_SETTING", "1"), ("FILE", "nowhere.properties")):
        with monkeypatch.context() as changed:
            changed.setenv(f"TAILRACE_KAFKA_{name}", value)
            refused("status", SHOP, "--log", places["kafka"])


def test_a_topic_that_kafka_does_not_have_is_named_with_a_hint(kafka_url: str) -> None:
    ended = run("log", "append", "nosuch", "--key", "id", "--log", kafka_url, stdin=b'{"id":"1"}\n')
    assert ended.code == 1
    assert "there is no such topic in the log" in ended.err
    assert "Create it, or correct the name." in ended.err
