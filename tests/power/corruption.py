"""Damage to files: drawn from a seed, done to a stopped service's folders, and what became of it.

Theory. Whatever happens to a file, one of three things must follow. *Detected*: an error that names the file, or the folder or
topic that it belongs to, and says what to do. *Healed*: the results are those of the oracle, and a line of the log says what
was lost or made again. *Harmless*: the results are those of the oracle, nothing is missing, and nothing needs to be said. Anything
else is *silent*, and a failure: wrong results, records that are missing without a word, or an error that is not Tailrace's.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from random import Random

from tailrace.core.errors import TailraceError
from tailrace.state.snapshots import Snapshots
from tests.power.checks import PLAN, check
from tests.power.disk import PAGE, Recorded
from tests.power.files import DAMAGED
from tests.power.recorded import INPUT, LOG, SNAPSHOTS
from tests.power.recording import carry_out
from tests.power.trials import TrialError

Files = dict[str, bytes | None]
"""By path, the content of a file, or None for a folder."""
Rows = dict[str, list[list[tuple[bytes, bytes]]]]
"""By snapshot, the rows of each task."""


@dataclass(frozen=True, slots=True)
class Image:
    """The folders of a service at one moment: what was promised by then, and the rows of its snapshots."""

    files: Files
    promised: list[str]
    rows: Rows


class Stopped:
    """Two images of a service: stopped cleanly, and killed while it worked; and another service's files."""

    def __init__(self, made: Recorded, other: Recorded, folder: Path) -> None:
        killed = [at for at, text in made.marks if "snapshot" in text][1]
        self.images = [_image(made, at, folder / str(at)) for at in (len(made.operations), killed + 1)]
        self.others: Files = carry_out(other.operations)


def _image(made: Recorded, at: int, folder: Path) -> Image:
    files = carry_out(made.operations[:at])
    folder.mkdir(parents=True)
    write(files, folder)
    return Image(files, [text for place, text in made.marks if place < at], _rows(folder))


def corruption(stopped: Stopped, seed: int, folder: Path) -> None:
    """Damage a file and check what follows.

    Raises:
        TrialError: The damage was silent.
    """
    random = Random(f"corruption {seed}")
    image = random.choice(stopped.images)
    part = random.choice(DAMAGED)
    name, (kind, damage) = _drawn(image.files, part, random), random.choice(list(_KINDS.items()))
    files = dict(image.files)
    damage(files, name, stopped.others, random)
    damaged = [path for path, data in image.files.items() if files.get(path) != data]
    folder.mkdir()
    write(files, folder)
    rebooted = random.random() < 0.5
    try:
        if part == SNAPSHOTS:
            assert _rows(folder, image.rows) == image.rows, "a snapshot has other rows"
        else:
            outcome = check(folder, "", image.promised, rebooted=rebooted)
            assert outcome.said or not outcome.lost, (
                f"{outcome.lost} records are missing, and nothing was said"
            )
    except TailraceError as error:
        said = str(error)
        if not error.hint or not any(one in said for path in damaged for one in _names_of(path, folder)):
            raise TrialError(f"seed {seed}, {kind} of {name}: an error that does not help: {said}") from error
    except Exception as error:
        raise TrialError(
            f"seed {seed}, {kind} of {name}: silent: {type(error).__name__}: {error}"[:500]
        ) from error
    shutil.rmtree(folder)


def write(files: Mapping[str, bytes | None], folder: Path) -> None:
    """Write files into a folder."""
    for path, data in sorted(files.items()):
        if data is None:
            (folder / path).mkdir(parents=True, exist_ok=True)
        else:
            (folder / path).write_bytes(data)


def _rows(folder: Path, known: Rows | None = None) -> Rows:
    snapshots = Snapshots(str(folder / SNAPSHOTS), PLAN.app)
    found: Rows = {}
    for name in known if known is not None else [one.id for one in snapshots.list()]:
        snapshot = snapshots.open(name)
        found[name] = [list(snapshot.rows(number)) for number in range(PLAN.partitions)]
    return found


def _drawn(files: Files, part: str, random: Random) -> str:
    """A file of a part; the larger ones more often."""
    sizes = {path: len(data) for path, data in sorted(files.items()) if data and path.startswith(f"{part}/")}
    (path,) = random.choices(list(sizes), [size**0.5 for size in sizes.values()])
    return path


def _names_of(path: str, folder: Path) -> list[str]:
    """What an error may name of a file: itself, a folder that it is in, below the root, or, of the log, a topic."""
    parts = path.split("/")
    topics = [*PLAN.outputs, INPUT, PLAN.changelog_topic, PLAN.tape_topic] if parts[0] == LOG else []
    return [*topics, parts[-1], *(str(folder.joinpath(*parts[:depth])) for depth in range(1, len(parts)))]


# --- the kinds of damage


def _flip(files: Files, name: str, _others: Files, random: Random) -> None:
    data = bytearray(files[name] or b"")
    data[random.randrange(len(data))] ^= 1 << random.randrange(8)
    files[name] = bytes(data)


def _zero(files: Files, name: str, _others: Files, random: Random) -> None:
    data = bytearray(files[name] or b"")
    start = random.randrange(-(-len(data) // PAGE)) * PAGE
    data[start : start + PAGE] = bytes(len(data[start : start + PAGE]))
    files[name] = bytes(data)


def _truncate(files: Files, name: str, _others: Files, random: Random) -> None:
    data = files[name] or b""
    files[name] = data[: random.randrange(len(data))]


def _delete(files: Files, name: str, _others: Files, _random: Random) -> None:
    del files[name]


def _like(files: Files, name: str, random: Random) -> str:
    """Another file of the same part, of the same kind if there is one."""
    part, suffix = name.partition("/")[0], Path(name).suffix
    part_files = sorted(
        path for path, data in files.items() if data and path.startswith(f"{part}/") and path != name
    )
    return random.choice([path for path in part_files if Path(path).suffix == suffix] or part_files)


def _swap(files: Files, name: str, _others: Files, random: Random) -> None:
    other = _like(files, name, random)
    files[name], files[other] = files[other], files[name]


def _duplicate(files: Files, name: str, _others: Files, random: Random) -> None:
    files[name] = files[_like(files, name, random)]


def _replace(files: Files, name: str, others: Files, random: Random) -> None:
    files[name] = others.get(name) or others[_like(others, name, random)]


_KINDS: dict[str, Callable[[Files, str, Files, Random], None]] = {
    "bit flipped": _flip,
    "page zeroed": _zero,
    "truncated": _truncate,
    "deleted": _delete,
    "swapped with another": _swap,
    "replaced by a copy of another": _duplicate,
    "replaced by one of another service": _replace,
}
