"""Draws the picture of a terminal in the README: a service is killed, resumes and is replayed. All that it shows is real output.

.venv/bin/python docs/pictures/terminal.py        # writes docs/pictures/terminal.svg
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

from rich.console import Console
from rich.text import Text

from tailrace.demo.history import payments
from tailrace.log.embedded import EmbeddedLog

ROOT = Path(__file__).parents[2]
PICTURE = Path(__file__).with_name("terminal.svg")
PAYMENTS = 200_000
WIDTH = 112

_COMMAND = [sys.executable, "-m", "tailrace"]
_FORM = """<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" role="img">
<style>text {{ font-family: ui-monospace, Menlo, Consolas, monospace; font-size: {char_height}px; white-space: pre }} {styles}</style>
<defs>{lines}</defs>
{chrome}
<g transform="translate({terminal_x}, {terminal_y})">{backgrounds}<g class="{unique_id}-matrix">{matrix}</g></g>
</svg>
"""


class Step(NamedTuple):
    """A command as it is typed, and what it prints."""

    typed: str
    said: str


def code() -> str:
    """The program of the README."""
    found = re.search(r"```python\n(# cards\.py\n.*?)```", (ROOT / "README.md").read_text("utf-8"), re.DOTALL)
    assert found is not None, "the README has no cards.py"
    return found[1]


def session(folder: Path) -> list[Step]:
    """Run the commands in a folder, and kill the service in between."""
    (folder / "cards.py").write_text(code(), "utf-8")
    with (folder / "payments.jsonl").open("w", encoding="utf-8") as lines:
        lines.writelines(
            json.dumps({"card": card, "at_ms": at_ms, "cents": cents}) + "\n"
            for card, at_ms, cents in payments(PAYMENTS)
        )
    steps: list[Step] = []

    def run(typed: str) -> str:
        command = [*_COMMAND, *typed.split()[1:]]
        done = subprocess.run(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=True
        )
        return done.stdout

    def show(typed: str) -> None:
        steps.append(Step(typed, run(typed)))

    show("tailrace topics apply --app cards:app")
    show("tailrace log append payments payments.jsonl --app cards:app")
    running = subprocess.Popen(
        [*_COMMAND, "run", "cards:app"], cwd=folder, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        with closing(EmbeddedLog(folder / "data" / "log")) as log:
            while not any(log.end_offset("alerts", number) for number in range(log.partitions("alerts"))):
                assert running.poll() is None, "the service has ended too early"
    finally:
        running.kill()
        running.wait()
    steps += [
        Step("tailrace run cards:app &", ""),
        Step("kill -9 $!", f"# {len(_dump(folder)):,} alerts so far\n"),
    ]
    run("tailrace run cards:app --until-end")
    steps.append(
        Step(
            "tailrace run cards:app --until-end", f"# {len(_dump(folder)):,} alerts: none lost, none twice\n"
        )
    )
    show("tailrace replay cards:app --compare")
    return steps


def alerts(folder: Path) -> list[dict[str, str | int]]:
    """The events in the topic of alerts after a session."""
    return [json.loads(line)["value"] for line in _dump(folder)]


def _dump(folder: Path) -> list[str]:
    command = [*_COMMAND, "log", "dump", "alerts"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=True).stdout.splitlines()


def drawing(steps: list[Step]) -> str:
    """The steps as SVG."""
    # Nothing but the recording is wanted.
    with Path(os.devnull).open("w", encoding="utf-8") as nowhere:
        console = Console(
            record=True, width=WIDTH, file=nowhere, force_terminal=True, color_system="truecolor"
        )
        for number, step in enumerate(steps):
            console.print(
                Text.assemble(
                    ("" if number == 0 or not steps[number - 1].said else "\n") + "$ ", (step.typed, "bold")
                )
            )
            for line in step.said.splitlines():
                console.print(Text(line, "green" if "none" in line else "dim"))
        return console.export_svg(title="kill, resume, replay", code_format=_FORM, unique_id="terminal")


if __name__ == "__main__":
    with TemporaryDirectory() as made:
        PICTURE.write_text(drawing(session(Path(made))), "utf-8")
