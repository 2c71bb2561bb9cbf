"""What a command cannot understand is told in one line, with what it was meant to be, and changes nothing. A selection that finds
nothing is no failure, and it is said: a misspelt key or a wrong bound never looks like an empty result.
"""

from __future__ import annotations

from pathlib import Path

import click
import msgspec
import pytest

from tailrace.cli.main import tailrace
from tests.cli import shop
from tests.cli.commands import ALL, SHOP, done, run
from tests.cli.shop import Purchase

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that the shop has run on, with a topic of its own, and a snapshot."""
    path = tmp_path_factory.mktemp("usage")
    log = ("--log", path / "log")
    done("topics", "apply", "--app", SHOP, *log)
    done("log", "create", "weather", *log)
    lines = b"\n".join(map(shop.purchases.encode, [Purchase("a", 1, 4), Purchase("b", 2, 5)]))
    done("log", "append", "purchases", "--app", SHOP, *log, stdin=lines)
    done("run", SHOP, "--end-of-input", "--after-end", *log, "--state", path / "state")
    done("snapshot", "create", SHOP, *log, "--snapshots", path / "snapshots", "--name", "before")
    return path


def refused(*arguments: object, code: int = 2) -> str:
    ended = run(*arguments)
    assert ended.code == code, (ended.out, ended.err)
    (line,) = ended.err.splitlines()
    if arguments[0] == "run" and line.startswith("{"):  # as its log
        said = msgspec.json.decode(line)
        assert (said["level"], said["exit_code"]) == ("error", code)
        return str(said["message"])
    assert line.startswith("tailrace: ")
    return line


# --- every command


NEEDY = [name for name, one in ALL.items() if any(p.required for p in one.params)]
BY_NAME = ("snapshot list", "snapshot show", "snapshot verify", "snapshot delete")
"""They look into a folder of snapshots, by the name that the app has there."""
WITH_APP = [
    (name, [p.name for p in one.params if isinstance(p, click.Argument) and p.required])
    for name, one in ALL.items()
    if any(isinstance(p, click.Argument) and p.name in ("app", "apps") for p in one.params)
    and name not in BY_NAME
]
WITH_TOPIC = [
    name
    for name, one in ALL.items()
    if name != "log create"
    and any(isinstance(p, click.Argument) and p.name == "topic" and p.required for p in one.params)
]


def test_there_are_commands() -> None:
    assert {"run", "replay", "graph", "log append", "dead-letters redrive"} <= set(ALL)
    assert len(WITH_APP) > 4
    assert len(WITH_TOPIC) > 2


@pytest.mark.parametrize("command", ALL)
def test_an_unknown_option(command: str) -> None:
    assert "No such option: --no-such-option" in refused(*command.split(), "--no-such-option")


@pytest.mark.parametrize("command", NEEDY)
def test_nothing_of_what_it_needs(command: str) -> None:
    assert "Missing" in refused(*command.split())


@pytest.mark.parametrize("command", ["log", "dead-letters", "snapshot", "topics"])
def test_a_group_without_or_with_an_unknown_command(command: str) -> None:
    assert "No such command 'walk'" in refused(command, "walk")
    ended = run(command)
    assert ended.code == 2
    assert "Usage: tailrace " in ended.err


@pytest.mark.parametrize("group", ["", "log", "dead-letters", "faust", "snapshot", "topics"])
def test_the_help_of_a_group_has_a_whole_line_for_each_of_its_commands(group: str) -> None:
    said = done(*group.split(), "--help").out
    lines = said.partition("Commands:\n")[2].splitlines()
    of_group = tailrace.commands[group] if group else tailrace
    assert isinstance(of_group, click.Group)
    assert [line.split()[0] for line in lines] == sorted(of_group.commands)
    assert [line for line in lines if line.endswith("...") or not line.endswith(".")] == []


@pytest.mark.parametrize(("command", "needed"), WITH_APP)
@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("nowhere:app", "there is no module 'nowhere'"),
        ("tests.cli.shop:nothing", "has no 'nothing'. There is tests.cli.shop:app"),
        ("tests.cli.shop:REFUSED", "is of type set, and no app"),
    ],
)
def test_an_unknown_app(
    command: str, needed: list[str], app: str, said: str, place: Path, tmp_path: Path
) -> None:
    arguments: list[object] = [app if one in ("app", "apps") else "0-1" for one in needed]
    options = {p.opts[0] for p in ALL[command].params}
    for option, value in (
        ("--log", place / "log"),
        ("--state", tmp_path / "state"),
        ("--snapshots", tmp_path / "snapshots"),
    ):
        if option in options:
            arguments += [option, value]
    if "--all" in options:
        arguments.append("--all")
    if "--to" in options and any(p.required for p in ALL[command].params if "--to" in p.opts):
        arguments += ["--to", *(["parquet"] if command == "export" else []), tmp_path / "made"]
    if command == "faust import":
        arguments += ["--from", "faust://shop/counts"]
    assert said in refused(*command.split(), *arguments)
    assert not (tmp_path / "state").exists()


@pytest.mark.parametrize("command", WITH_TOPIC)
def test_an_unknown_topic(command: str, place: Path) -> None:
    said = refused(*command.split(), "plian", "--log", place / "log", code=1)
    assert "there is no such topic in the log (topic 'plian')" in said
    assert "Create it, or correct the name." in said


@pytest.mark.parametrize("url", ["kafka://", "kafka://h:port", "kafka:/h:9092", "kafka:h", "Kafka://h:9092"])
def test_a_misspelt_address_of_kafka_is_refused_at_once(url: str) -> None:
    line = refused("run", SHOP, "--log", url)
    assert "--log" in line
    assert "kafka://host:9092" in line


# --- an app that has run

STATE = ("--state", "{state}", "--end-of-input", "--after-end")
TO = ("--to", "{made}")
WRONG = [
    (("run", SHOP, *STATE, "--workers", "99"), "at most 3 workers have something to do"),
    (("run", SHOP, *STATE, "--as", "a b"), "'a b' cannot be the name of an app"),
    (("run", SHOP, *STATE, "--as", "shop"), "is already the name of"),
    (("run", SHOP, *STATE, "--replace-state"), "--from-snapshot"),
    (("run", f"{SHOP}@a b", *STATE), "'a b' cannot be the name of an app"),
    (("replay", SHOP, "--partition", "99"), "--partition"),
    (("rebuild", SHOP, *TO, "--outputs", "csv:x"), "outputs cannot go to 'csv:x'"),
    (("rebuild", SHOP, *TO, "--until", "2050-01-01"), "is outside the log"),
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


@pytest.mark.parametrize(("arguments", "said"), WRONG, ids=[" ".join(one) for one, _ in WRONG])
def test_wrong_usage_is_refused_and_changes_nothing(
    place: Path, tmp_path: Path, arguments: tuple[str, ...], said: str
) -> None:
    made, state = tmp_path / "made", tmp_path / "state"
    given = [one.format(made=made, state=state) for one in arguments]
    assert said.format(made=made) in refused(*given, "--log", place / "log")
    assert not list(made.glob("*/*/manifest.json"))
    assert not state.exists()


def test_an_app_cannot_be_moved_to_the_log_that_it_lives_on(place: Path) -> None:
    log = place / "log"
    assert "are the same log" in refused("migrate", "--from", log, "--to", log, "--app", SHOP)


# --- what is misspelt

LOG = ("--log", "LOG")


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        # commands
        (["rum"], 2, "No such command 'rum'. Did you mean 'run'?"),
        (["dead-leters", "list"], 2, "No such command 'dead-leters'. Did you mean 'dead-letters'?"),
        (["log", "apend"], 2, "No such command 'apend'. Did you mean 'append'?"),
        (["snapshot", "veryfy"], 2, "No such command 'veryfy'. Did you mean 'verify'?"),
        (["dead-letters", "sohw"], 2, "No such command 'sohw'. Did you mean 'show'?"),
        # apps
        (["run", "tests.cli.shop:ap"], 2, "has no 'ap'. Did you mean 'app'? There is tests.cli.shop:app."),
        (["run", "servics.sensors:app"], 2, "there is no module 'servics'. Correct the name, or start in the folder"),
        (["dead-letters", "list", "shpo", *LOG], 2, "of an app 'shpo'. Did you mean 'shop'?"),
        (["replay", f"{SHOP}@shopp", *LOG], 1, "'shopp' has never run on it. Did you mean 'shop'?"),
        # topics
        (["log", "dump", "wether", *LOG], 1, "(topic 'wether'). Did you mean 'weather'?"),
        (["log", "tail", "purchase", *LOG], 1, "Did you mean 'purchases'?"),
        (["log", "append", "wether", *LOG], 1, "Did you mean 'weather'?"),
        (["archive", "--log", "LOG", "--to", "TO", "--topic", "wether"], 1, "Did you mean 'weather'?"),
        (
            ["log", "append", "purchses", "--app", SHOP, *LOG],
            2,
            "but late-purchases, purchases, totals, visits. Did you mean 'purchases'?",
        ),
        # snapshots
        (["snapshot", "show", "shop", "befor", "--snapshots", "AT"], 1, "no snapshot 'befor'"),
        (["snapshot", "show", "shop", "befor", "--snapshots", "AT"], 1, "Did you mean 'before'?"),
        (["snapshot", "show", "shpo", "before", "--snapshots", "AT"], 1, "no snapshot 'before'"),
        (["snapshot", "show", "shpo", "latest", "--snapshots", "AT"], 1, "Did you mean 'shop'?"),
        (["snapshot", "list", "shpo", "--snapshots", "AT"], 0, "there is no snapshot of 'shpo' in"),
        (["snapshot", "list", "shpo", "--snapshots", "AT"], 0, "Did you mean 'shop'?"),
    ],
)  # fmt: skip
def test_what_was_meant_is_said(
    place: Path, tmp_path: Path, arguments: list[str], code: int, said: str
) -> None:
    places = {"LOG": place / "log", "TO": tmp_path / "to", "AT": place / "snapshots"}
    ended = run(*(places.get(one, one) for one in arguments))
    assert ended.code == code, ended.err
    (line,) = ended.err.splitlines()
    assert said in line


def test_topics_that_a_log_has_under_other_names_are_named(tmp_path: Path) -> None:
    for name in ("purchase", "visit"):
        done("log", "create", name, "--partitions", 3, "--log", tmp_path / "log")
    ended = run(
        "run", SHOP, "--end-of-input", "--after-end", "--log", tmp_path / "log", "--state", tmp_path / "state"
    )
    assert ended.code == 1
    line = ended.err.splitlines()[-1]
    assert "no topic 'late-purchases' and no 'purchases' and no 'totals'" in line
    assert "Did you mean 'purchase'? " in line
    assert "--create-topics" in line


# --- selections that find nothing


def test_a_key_that_nothing_was_for_is_named_by_a_replay(place: Path) -> None:
    said = done("replay", SHOP, "--key", "a", "--key", "nobody", "--log", place / "log").out
    assert "note: the replay found nothing for the key 'nobody'" in said
    assert "'a'" not in said


def test_a_key_without_state_is_named_by_a_rebuild(place: Path, tmp_path: Path) -> None:
    for number, options in enumerate(([], ["--order", "stages"])):
        said = done(
            *("rebuild", SHOP, "--key", "a", "--key", "nobody", "--key", "none", "--workers", 1, *options),
            *("--to", tmp_path / str(number), "--log", place / "log"),
        ).out
        assert "note: there is no state of the keys nobody, none" in said


def test_a_limit_that_nothing_comes_to_is_told_by_a_replay(place: Path) -> None:
    note = "note: no limit was reached"
    assert note in done("replay", SHOP, "--until", "2100-01-01", "--log", place / "log").out


def test_a_range_without_records_is_told_by_a_dump_and_the_file_is_as_it_would_be(place: Path) -> None:
    for options in (["--from", "500"], ["--from", "2100-01-01"], ["--from", "3", "--until", "1"]):
        ended = done("log", "dump", "purchases", *options, "--log", place / "log")
        assert not ended.out
        assert (
            "'purchases' has no record there; its offsets by partition: 0 from 0 up to 0, 1 from 0 up to 1"
            in ended.err
        )
    assert not done("log", "dump", "purchases", "--from", "0", "--log", place / "log").err
    assert not done("log", "dump", "totals", "--partition", "0", "--log", place / "log").err
