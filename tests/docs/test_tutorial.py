"""What the README and the tutorial show is what their reader gets; and the runner of pages finds what is not so."""

import os
import re
import time
from pathlib import Path

import pytest

from tests.docs.page import ROOT, play
from tests.kafka.broker.cluster import free_ports

PAGES = [
    "docs/client.md",
    "docs/tutorial.md",
    "docs/first-service.md",
    "docs/testing.md",
    "docs/event-time.md",
    "docs/windows.md",
    "docs/joins.md",
    "docs/explore.md",
    "docs/reshape.md",
    "docs/rolling.md",
    "docs/snapshots.md",
    "docs/upgrade-and-backfill.md",
    "docs/upgrades.md",
]


@pytest.mark.long
@pytest.mark.parametrize("page", PAGES)
def test_what_a_page_says_is_what_happens(page: str, tmp_path: Path) -> None:
    address = f"127.0.0.1:{free_ports(1)[0]}"
    text = (ROOT / page).read_text("utf-8").replace("127.0.0.1:8080", address)
    assert (
        play(re.sub(r"^tailrace dev \S+", rf"\g<0> --http {address}", text, flags=re.MULTILINE), tmp_path)
        >= 1
    )


HELLO = "```python\n# hello.py\nprint('hello')\n```\n\n```sh\npython hello.py\n```\n\n```text\n{}\n```\n"


def commands(typed: str, shown: str, remark: str = "") -> str:
    return f"```sh\n{typed}\n```\n\n{remark}```text\n{shown}\n```\n"


BROKEN = HELLO.replace("print('hello')", "raise SystemExit(3)").format("...")


@pytest.mark.parametrize(
    ("page", "said"),
    [
        (HELLO.format("goodbye"), "it prints"),
        (BROKEN, "exit code 3"),
        (commands("false\necho hello", "..."), "exit code 1"),
        ("```python\nprint()\n```\n", "does not begin with the name of its file"),
    ],
)
def test_what_is_not_so_or_fails_or_is_not_run_is_found(page: str, said: str, tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match=said):
        play(page, tmp_path)


def test_a_change_is_made_where_it_belongs_or_found_to_belong_nowhere(tmp_path: Path) -> None:
    changed = "```diff\n--- hello.py\n # hello.py\n-print('hello')\n+print('goodbye')\n```\n\n"
    ran = "```sh\npython hello.py\n```\n\n```text\ngoodbye\n```\n"
    assert play(HELLO.format("hello") + changed + ran, tmp_path) == 2
    with pytest.raises(AssertionError, match=r"not in hello\.py"):
        play(changed, tmp_path)


BACKGROUND = "```sh\nsleep 600 & started=$!\n```\n\n"


def test_what_runs_in_the_background_goes_on_while_the_next_block_is_typed(tmp_path: Path) -> None:
    killed = commands("kill -0 $started\nkill -9 $started\nwait\necho gone", "gone")
    assert play(BACKGROUND + killed, tmp_path) == 1


def test_what_still_runs_when_a_page_ends_is_killed(tmp_path: Path) -> None:
    typed = "sleep 600 &\necho $! > pid"
    assert play(commands(typed, ""), tmp_path) == 1
    process = int((tmp_path / "pid").read_text())
    give_up = time.monotonic() + 30
    while runs(process):
        assert time.monotonic() < give_up, "it still runs"
        time.sleep(0.01)


def runs(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return False
    state = Path(f"/proc/{process}/stat")
    return not state.exists() or state.read_text().rpartition(")")[2].split()[0] != "Z"


def test_a_shell_goes_on_after_a_command_that_was_meant_to_fail(tmp_path: Path) -> None:
    failing = commands("python -c 'raise ValueError(1)'", "...\nValueError: 1", "<!-- it fails -->\n")
    assert play(failing + commands("echo still here", "still here"), tmp_path) == 2


@pytest.mark.parametrize(
    ("printed", "remark", "shown", "is_so"),
    [
        ("3 of 4", "", "3 of 4", True),
        ("3 of 4", "", "3 of 5", False),
        ("1,234 of 4", "<!-- any numbers: 17 -->\n", "17 of 4", True),
        ("1,234 of 4", "<!-- any numbers: 17 -->\n", "17 of 5", False),
        ("3, of 4", "<!-- any numbers: 17 -->\n", "17, of 4", True),
        ("3 of 4", "<!-- any numbers -->\n", "17 of 5", True),
        ("3 of four", "<!-- any numbers -->\n", "17 of 5", False),
        ("done in 3.1 s (1,000 records/s)", "", "done in 0.2 s (17 records/s)", True),
    ],
)
def test_only_the_numbers_that_are_said_to_vary_may_vary(
    printed: str, remark: str, shown: str, is_so: bool, tmp_path: Path
) -> None:
    page = commands(f"echo '{printed}'", shown, remark)
    if is_so:
        assert play(page, tmp_path) == 1
    else:
        with pytest.raises(AssertionError, match="it prints"):
            play(page, tmp_path)
