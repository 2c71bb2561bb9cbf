"""The process of a version: it has the version's code, and does tasks for its parent.

A task is a line of JSON on standard input: its name and its arguments. The answer, a failure or a value, goes to
what was standard output when the process began. What the app prints goes to standard error.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from queue import SimpleQueue
from typing import Any, get_type_hints

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.tape import decode_cut
from tailrace.core.errors import TailraceError, UsageError
from tailrace.core.records import InputRecord
from tailrace.history.rebuilding.code_digest import code_of
from tailrace.history.rebuilding.driver import rebuild
from tailrace.history.rebuilding.engines import LocalEngine
from tailrace.history.rebuilding.output_files import read_outputs
from tailrace.history.rebuilding.report import RebuildReport
from tailrace.history.rebuilding.request import PARQUET, Request
from tailrace.history.rebuilding.results import Failure
from tailrace.history.replay.replaying import seldom_collected
from tailrace.lab.differences import Made, compare, partition_of_outputs
from tailrace.lab.files import TableWriter
from tailrace.lab.first_events import record_steps
from tailrace.lab.state_tables import View, write_state
from tailrace.lab.topic_tables import TopicTable
from tailrace.lab.upgrade.draining import drain
from tailrace.lab.upgrade.generation import write_generation
from tailrace.lab.upgrade.tasks import (
    advance,
    await_begun,
    check_beginning,
    counted_rows,
    keep,
    kept_beginning,
    planned,
    verify,
)
from tailrace.lab.versions import about, digest_of
from tailrace.processes.app_loading import find_app
from tailrace.state.snapshots import Place, Snapshots

_AT_ONCE = 20_000
_INSTALLED = {"site-packages", "dist-packages"}
_RUNNING = {"tailrace", "__main__"}
"""What runs a version is that of this process."""


class Rebuilt(msgspec.Struct):
    """A rebuild that was made, and by what."""

    code: str
    report: RebuildReport
    made: Made
    begun_with: str
    """The snapshot that its history begins with, if any."""


_rebuilt = msgspec.json.Decoder(Rebuilt)


def make(plan: Plan, request: Request, workers: int | None, folder: str) -> Rebuilt:
    """Rebuild, unless ``folder`` holds the result of the same code and request."""
    code, file = (
        digest_of((request, sorted(code_of(request.app, plan).items()))),
        Path(folder) / "rebuilt.json",
    )
    if file.is_file():
        done = _rebuilt.decode(file.read_bytes())
        if done.code == code:
            return done
    report = rebuild(request, LocalEngine(workers))
    outputs = Path(Place.at(request.to.outputs.removeprefix(PARQUET)).path) / plan.app / report.snapshot
    outputs.mkdir(parents=True, exist_ok=True)
    cuts = [
        one.cut for one in Snapshots(request.to.uri, plan.app).open(report.snapshot).manifest.tasks if one.cut
    ]
    bases = sorted({decode_cut(one).base for one in cuts} - {""})
    begun_with = report.base or ", ".join(bases)
    done = Rebuilt(code, report, Made(request.to.uri, report.snapshot, (str(outputs),)), begun_with)
    file.with_suffix(".new").write_bytes(msgspec.json.encode(done))
    file.with_suffix(".new").replace(file)
    return done


def tables(plan: Plan, made: Made, folder: str, queries: str | None = None) -> list[str]:
    """Write the tables for metrics: the states of the snapshot, if one is named, as ``tailrace export`` has them, and the outputs
    to each topic likewise, of those that the text of the queries names if it is given. Returns notes.
    """
    shutil.rmtree(folder, ignore_errors=True)
    states, outputs = Path(folder) / "states", Path(folder) / "outputs"
    outputs.mkdir(parents=True)
    if made.snapshot:
        states.mkdir()
        write_state(plan, View.of_snapshot(Snapshots(made.uri, plan.app).open(made.snapshot)), states)
    named = [one for one in plan.outputs if queries is None or one.lower() in queries.lower()]
    found = [TopicTable(plan, one) for one in named if one in plan.topics]
    topics = [(one, TableWriter(outputs, one.topic, one.columns)) for one in found]
    for file in made.output_files():
        partition, rest = partition_of_outputs(file), read_outputs(Place.at(str(file)))
        while some := list(islice(rest, _AT_ONCE)):
            sent: dict[str, list[InputRecord]] = {}
            for number, one in some:
                sent.setdefault(one.topic, []).append(
                    InputRecord(number, one.timestamp_ms, one.key, one.value)
                )
            for table, writer in topics:
                table.write_records(partition, sent.get(table.topic, []), writer)
    for _, writer in topics:
        writer.close()
    return [note for one in found for note in one.notes]


TASKS: dict[str, Callable[..., Any]] = {
    one.__name__: one
    for one in (
        about,
        make,
        compare,
        tables,
        record_steps,
        check_beginning,
        planned,
        advance,
        keep,
        kept_beginning,
        drain,
        verify,
        counted_rows,
        write_generation,
        await_begun,
    )
}


def in_tree(place: str, top: str, tree: str) -> str:
    """The folder of the work tree for one below the top of its repository; any other folder, and what is installed, stays."""
    path = Path(place).resolve()
    is_own = path.is_relative_to(top) and not path.is_relative_to(tree)
    if not is_own or _INSTALLED & {*path.parts} or path.is_relative_to(sys.base_prefix):
        return place
    return str(tree / path.relative_to(top))


def _check_loaded(top: str, tree: str) -> None:
    """Check that no module comes from the repository in place of its work tree. Raises UsageError."""
    for name, module in sorted(sys.modules.items()):
        file = getattr(module, "__file__", None)
        if file and name.partition(".")[0] not in _RUNNING and in_tree(file, top, tree) != file:
            raise UsageError(
                f"the module {name!r} of the revision is loaded from {file}, and not from its work tree",
                hint="An editable install brings it in. Uninstall it, and put the folder of the sources on PYTHONPATH.",
            )


def answer(reference: str, line: bytes, *moved: str) -> bytes:
    """Do a task of the app that ``module:app`` names. ``moved``: of a revision, see ``Place``."""
    name, given = msgspec.json.decode(line, type=tuple[str, dict[str, msgspec.Raw]])
    task, failure, value = TASKS[name], None, None
    hints = get_type_hints(task)
    try:
        plan = find_app(reference).plan()
        if moved:
            _check_loaded(*moved)
        decoded = {one: msgspec.json.decode(each, type=hints[one]) for one, each in given.items()}
        with seldom_collected():
            value = task(plan, **decoded)
    except TailraceError as error:
        failure = Failure.of(error)
    return msgspec.json.encode((failure, value))


def main() -> None:
    """Do tasks until the parent ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent
    if moved := sys.argv[2:]:
        sys.path[:] = [in_tree(one, *moved) for one in sys.path]
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    lines: SimpleQueue[bytes] = SimpleQueue()
    threading.Thread(target=_read, args=(lines,), daemon=True).start()
    while True:
        answers.write(answer(sys.argv[1], lines.get(), *moved) + b"\n")
        answers.flush()


def _read(lines: SimpleQueue[bytes]) -> None:
    """Read tasks. The process ends with its parent, also within a task."""
    for line in sys.stdin.buffer:
        lines.put(line)
    os._exit(1)


if __name__ == "__main__":
    main()
