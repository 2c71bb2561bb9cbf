"""Whatever a command line names and misspells is met with what it was meant to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.commands import SHOP, done, run

pytestmark = pytest.mark.usefixtures("quiet_logs")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A log that the shop has run on, with a topic of its own."""
    path = tmp_path_factory.mktemp("misspelt")
    done("topics", "apply", "--app", SHOP, "--log", path / "log")
    done("log", "create", "weather", "--log", path / "log")
    done("run", SHOP, "--end-of-input", "--after-end", "--log", path / "log", "--state", path / "state")
    where = ("--log", path / "log", "--snapshots", path / "snapshots")
    done("snapshot", "create", SHOP, *where, "--name", "before")
    return path


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
        # inputs
        (["replay", SHOP, "--until-offset", "purchase=1", *LOG], 2, "Did you mean 'purchases'?"),
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
