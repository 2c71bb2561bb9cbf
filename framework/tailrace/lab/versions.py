"""A version of an app, in a process of its own: ``module:app``, ``path/to/file.py:app``, or either after ``REV:``.

A revision of the repository of the current folder is checked out into a temporary work tree. Its process runs
there, with that folder first on the path, and other folders of the repository on its path are those of the work
tree. It has the interpreter and the installed packages of this process, unless another interpreter is named: those
that the revision asks for are not installed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple, TypeVar

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.stages import has_circle, own_inputs
from tailrace.core.errors import UnknownAppError, UsageError, WorkerLostError
from tailrace.history.reading.app_topics import internal_topics
from tailrace.history.rebuilding.code_digest import code_of
from tailrace.history.rebuilding.results import Failure
from tailrace.history.rebuilding.stage_targets import in_one_order

T = TypeVar("T")
_answer = msgspec.json.Decoder(tuple[Failure | None, msgspec.Raw])
_REQUIREMENTS = [
    f":(top)*{one}" for one in ("requirements*", ".lock", "pyproject.toml", "setup.py", "setup.cfg")
]


class Place(NamedTuple):
    """Where the code of a version is."""

    reference: str
    """``module:app``"""
    root: Path
    """The folder that is first on its path."""
    note: str
    moved: tuple[str, ...] = ()
    """Of a revision: the top of the repository, and the work tree that stands for it."""


def placed(text: str, closing: ExitStack) -> Place:
    """Find a version; a revision is checked out until ``closing`` closes.

    Raises:
        UnknownAppError: The text names no app, or there is no such file.
        UsageError: There is no such revision, or the current folder is in no repository.
    """
    revision, place, attribute = ["", *text.split(":")][-3:] if text.count(":") in (1, 2) else ("", "", "")
    if not place or not attribute or (not revision and text.count(":") == 2):
        raise UnknownAppError(
            f"{text!r} names no version of an app",
            hint="Write package.module:app, path/to/file.py:app, or a revision before it: main:package.module:app.",
        )
    root, note, moved = Path.cwd(), "in the current folder", tuple[str, ...]()
    if revision:
        root, note, moved = _checked_out(revision, closing)
    if not place.endswith(".py"):
        return Place(f"{place}:{attribute}", root, note, moved)
    file = root / place
    if not file.is_file():
        raise UnknownAppError(f"there is no file {place!r} {note}", hint="Correct the path.")
    names, folder = [file.stem], file.resolve().parent
    while (folder / "__init__.py").is_file():
        names, folder = [folder.name, *names], folder.parent
    return Place(f"{'.'.join(names)}:{attribute}", folder, note, moved)


def _checked_out(revision: str, closing: ExitStack) -> tuple[Path, str, tuple[str, ...]]:
    """The folder of a revision that is the current folder here, a note about it, and the top here and there."""
    top = Path(_git(["rev-parse", "--show-toplevel"], "the current folder is in no git repository"))
    missing = f"there is no revision {revision!r}"
    commit = _git(["rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}"], missing)
    tree = Path(closing.enter_context(TemporaryDirectory(prefix="tailrace-ab-"))) / top.name
    closing.callback(_removed, tree)  # before: git may be interrupted
    _git(["worktree", "add", "--quiet", "--detach", str(tree), commit], f"{revision!r} cannot be checked out")
    root = tree / Path.cwd().resolve().relative_to(top.resolve())
    if not root.is_dir():
        raise UsageError(f"the current folder is not in {revision!r}", hint="Start in one that it has.")
    differ = _git(["diff", "--name-only", commit, "--", *_REQUIREMENTS], missing).split()
    note = f"revision {commit[:12]} in a temporary work tree"
    if differ:
        note += f"; {', '.join(differ)} of it differ from those here, and its requirements were not installed"
    return root, note, (str(top.resolve()), str(tree.resolve()))


def _removed(tree: Path) -> None:
    if tree.exists():  # forced twice: git leaves one locked that it was killed in making
        _git(["worktree", "remove", "--force", "--force", str(tree)], "the work tree cannot be removed")


def _environment() -> dict[str, str]:
    """The environment without the repository and the index that git names to its hooks."""
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith("GIT_") or name.startswith("GIT_CONFIG")
    }


def _git(arguments: list[str], failed: str) -> str:
    try:
        done = subprocess.run(  # noqa: S603  # the git of the user, with arguments of its own
            ["git", *arguments],  # noqa: S607
            env=_environment(),
            capture_output=True,
            text=True,
            check=True,
        )
    except (OSError, subprocess.CalledProcessError) as error:
        said = str(getattr(error, "stderr", error)).strip()
        hint = f"git reports: {said}" if said else "Name a branch, a tag or a commit, or fetch it."
        raise UsageError(failed, hint=hint) from None
    return done.stdout.strip()


class Version:
    """The process of a version; it answers one task after the other. The caller must close it."""

    def __init__(self, name: str, place: Place, python: str = sys.executable, *, hash_seed: int = 0) -> None:
        self.name, self.place = name, place
        try:
            self._process = subprocess.Popen(  # noqa: S603  # the interpreter that the user has named
                [python, "-m", "tailrace.lab.side", place.reference, *place.moved],
                cwd=place.root,
                env={**_environment(), "PYTHONHASHSEED": str(hash_seed)},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
            )
        except OSError as error:
            raise UsageError(f"{python!r} cannot be started: {error}", hint="Name an interpreter.") from error

    def ask(self, task: str, answer: type[T], **given: Any) -> T:
        """Have a task of ``side`` done. Raises its TailraceError, with the version's name before it."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        try:
            self._process.stdin.write(msgspec.json.encode((task, given)) + b"\n")
            self._process.stdin.flush()
            line = self._process.stdout.readline()
        except BrokenPipeError:
            line = b""
        if not line:
            raise WorkerLostError(
                f"the process of {self.name} ended with exit code {self._process.wait()}",
                hint="See its messages above. An interpreter must have Tailrace installed.",
            )
        failure, value = _answer.decode(line)
        if failure is not None:
            error = failure.error()
            error.what = f"{self.name}: {error.what}"
            raise error
        return msgspec.json.decode(value, type=answer)

    def kill(self) -> None:
        """End the process. An ``ask`` of another thread that waits for its answer raises WorkerLostError."""
        self._process.kill()

    def close(self) -> None:
        """End the process."""
        self.kill()
        self._process.communicate()


class About(msgspec.Struct):
    """A version of an app."""

    app: str
    version: str
    code: str
    """A digest of its code."""
    partitions: int
    inputs: list[str]
    """The topics that it reads from outside."""
    own: list[str]
    """The topics that it reads and may write: what it sends to itself. In stages all of its keys then run as one."""
    one_order: list[str]
    """Its operators whose order in stages is one of several."""
    circle: bool
    """Whether operators feed each other: then it has no stages."""
    topics: list[str]
    """All that it reads or writes."""
    timers: bool
    """Whether an actor has timers."""
    fields: dict[str, dict[str, str]]
    """By actor and field: its type."""
    schemas: dict[str, str]
    """By actor, the digest of its schema."""


def about(plan: Plan, reference: str) -> About:
    """Describe this version."""
    read, own = [one.name for one in plan.inputs], own_inputs(plan)
    return About(
        app=plan.app,
        version=plan.version,
        code=digest_of(sorted(code_of(reference, plan).items())),
        partitions=plan.partitions,
        inputs=[one for one in read if one not in own and one != plan.inbox_topic],
        own=sorted(own),
        one_order=in_one_order(plan),
        circle=has_circle(plan),
        topics=[*read, *plan.outputs, *internal_topics(plan)],
        timers=any(one.schema.timers for one in plan.actors),
        fields={one.name: {each.name: str(each) for each in one.schema.fields} for one in plan.actors},
        schemas={one.name: digest_of(one.schema) for one in plan.actors},
    )


def digest_of(value: object) -> str:
    """A digest of something that msgspec encodes."""
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
