"""The processes of the race, each a role on one embedded log: writer, cleaner, follower.

    python -m tests.soak.race_processes ROLE FOLDER SEED RUN

A process writes down each thing it is about to do and each thing it was promised, one line each, in a file of its own: a line
that was written survives SIGKILL. The lines are all that the model (race_model.py) knows, apart from the log itself:

    holds EPOCH             a writer has taken its transactional id over
    tries LABEL             it begins a transaction
    aborted LABEL           it drops the transaction
    refused LABEL           the log has refused the transaction: another holds the id
    acknowledged LABEL      the commit has returned
    read TOPIC PARTITION END DIGEST    all records before this offset, read one after the other, have this digest
    seen LABEL OFFSET KEY   a record of the compacted topic
    ended                   a follower has found nothing more, after the last writer had ended
    cleaned BLOCKS          so many blocks were rewritten
    unavailable             the process has ended, as the append lock did not become free

While a process that holds the append lock is stopped, the others are refused after a while. Nothing of what was refused may be
visible.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from hashlib import blake2b
from pathlib import Path
from random import Random
from typing import NamedTuple

import msgspec

from tailrace.core.errors import FencedError, LogUnavailableError
from tailrace.core.records import InputRecord, Output
from tailrace.log import TopicPartition, TopicSettings
from tailrace.log.embedded import EmbeddedLog
from tailrace.log.options import LogOptions

WRITERS = ("one", "two")
"""The transactional ids. The processes that hold one after the other are its runs: ``one.7``."""
KEPT = ("first", "second")
"""Topics that keep all records."""
COMPACTED = "latest"
PARTITIONS = 2
PLACES = [TopicPartition(topic, number) for topic in KEPT for number in range(PARTITIONS)]
POSITION = TopicPartition(KEPT[0], 0)
"""Where each group commits the number of its writer's last commit."""
PATIENCE_S = 2.0
LOG, NOTES = "log", "notes"
WRITERS_END, READERS_END = "writers-end", "readers-end"
"""Files: when they exist, processes end by themselves."""
_LARGE = 700_000
_LABEL = "label"


class Label(NamedTuple):
    """One attempt of a run to make the commit of a number. An attempt that fails leaves its number to another one."""

    run: str
    attempt: int
    number: int

    @property
    def writer(self) -> str:
        """The transactional id."""
        return self.run.partition(".")[0]

    def __str__(self) -> str:
        return f"{self.run}/{self.attempt}/{self.number}"

    @classmethod
    def parsed(cls, text: str) -> Label:
        """The label of a text."""
        run, attempt, number = text.split("/")
        return cls(run, int(attempt), int(number))

    @classmethod
    def of(cls, record: InputRecord) -> Label:
        """The label of a record that was read."""
        in_headers = dict(record.headers).get(_LABEL)
        return cls.parsed((in_headers or (record.value or b"").partition(b"|")[0]).decode())


def outputs(seed: int, label: Label) -> list[Output]:
    """The records of a transaction. They follow from seed and label, so the model knows them to the byte."""
    random = Random(f"{seed} {label}")
    large = random.random() < 0.005
    records: list[Output] = []
    for number in range(random.randint(1, 40)):
        size = random.choice((0, 10, 300, 3000))
        if large and number == 0:
            size = _LARGE
        value = b"%s|%d|%s" % (str(label).encode(), number, b"x" * size)
        key = b"%d" % random.randrange(50)
        records.append(Output(random.choice(KEPT), key, value, random.randint(-5, 1_000_000)))
    key = f"{label.writer}-{random.randrange(20)}".encode()
    latest = None if random.random() < 0.2 else b"%d" % label.number
    records.append(Output(COMPACTED, key, latest, label.number, ((_LABEL, str(label).encode()),)))
    return records


class Digest:
    """The digest of the records of a partition, from the first one on."""

    def __init__(self) -> None:
        self._hash = blake2b(digest_size=8)
        self.end = 0
        """The offset after the last record."""

    def add(self, record: InputRecord) -> None:
        """Add the next record."""
        self._hash.update(msgspec.msgpack.encode(record))
        self.end = record.offset + 1

    def text(self) -> str:
        """The digest of all records so far."""
        return self._hash.hexdigest()


def create(folder: Path) -> None:
    """The log and the folder of the notes."""
    (folder / NOTES).mkdir()
    log = EmbeddedLog(folder / LOG)
    for topic in KEPT:
        log.create_topic(topic, TopicSettings(PARTITIONS))
    log.create_topic(COMPACTED, TopicSettings(PARTITIONS, compacted=True))
    log.close()


def committed(log: EmbeddedLog, writer: str) -> int:
    """The number of a writer's last commit, by the log."""
    return log.committed_offsets(writer, [POSITION]).get(POSITION, 0)


class Role:
    """What the processes have in common."""

    def __init__(self, folder: Path, seed: int, run: str) -> None:
        self.folder = folder
        self.seed = seed
        self.run = run
        self.random = Random(f"{seed} {run}")
        self._notes = (folder / NOTES / run).open("a", encoding="ascii", buffering=1)
        policy = self.random.choice(("interval", "commit"))
        options = LogOptions(
            fsync=policy,  # type: ignore[arg-type]  # one of its values
            patience_s=PATIENCE_S,
            compaction_bytes=1_000,
        )
        self.log = EmbeddedLog(folder / LOG, options, create=False)

    def note(self, *words: object) -> None:
        """Write a line down."""
        self._notes.write(" ".join(map(str, words)) + "\n")

    def over(self, marker: str = WRITERS_END) -> bool:
        """Whether the process must end."""
        return (self.folder / marker).exists()


class Writer(Role):
    """Makes one commit after the other, each with its number as the group's position and as the published watermark."""

    def work(self) -> None:
        """Until the end, or until another has taken the id over."""
        name = self.run.partition(".")[0]
        writer = self.log.writer(name)
        self.note("holds", writer.epoch)
        number, attempt = committed(self.log, name), 0
        while not self.over():
            attempt += 1
            label = Label(self.run, attempt, number + 1)
            self.note("tries", label)
            records = outputs(self.seed, label)
            half = self.random.randrange(len(records))
            try:
                writer.append(records[:half])
                writer.append(records[half:])
                if self.random.random() < 0.1:
                    self.note("aborted", label)
                    writer.abort()
                    continue
                writer.commit({POSITION: label.number}, name, {KEPT[0]: label.number})
            except FencedError:
                self.note("refused", label)
                return
            except LogUnavailableError:
                self.note("refused", label)
                raise
            self.note("acknowledged", label)
            number = label.number


class Cleaner(Role):
    """Compacts all the time."""

    def work(self) -> None:
        """Until the end."""
        while not self.over():
            done = self.log.clean(deletions_kept_ms=self.random.choice((0, 86_400_000)))
            if done.blocks_rewritten:
                self.note("cleaned", done.blocks_rewritten)
            time.sleep(self.random.uniform(0, 0.05))


class Follower(Role):
    """Reads everything from the beginning and follows it."""

    def work(self) -> None:
        """Until nothing more can come and all is read."""
        latest = [TopicPartition(COMPACTED, number) for number in range(PARTITIONS)]
        reader = self.log.reader(dict.fromkeys([*PLACES, *latest], 0))
        digests = {place: Digest() for place in PLACES}
        while True:
            last = self.over(READERS_END)
            reader.wait(0.1)
            found = 0
            for place in PLACES:
                while some := reader.fetch(*place, self.random.randint(1, 500)).records:
                    self._add(place, digests[place], some)
                    found += len(some)
            for place in latest:
                while some := reader.fetch(*place, self.random.randint(1, 500)).records:
                    for one in some:
                        self.note("seen", Label.of(one), one.offset, (one.key or b"").decode())
            if last and not found:
                self.note("ended")
                return

    def _add(self, place: TopicPartition, digest: Digest, records: list[InputRecord]) -> None:
        for one in records:
            digest.add(one)
        self.note("read", *place, digest.end, digest.text())


ROLES: Mapping[str, Callable[[Path, int, str], Writer | Cleaner | Follower]] = {
    **dict.fromkeys(WRITERS, Writer),
    "cleaner": Cleaner,
    "follower": Follower,
}


def main(role: str, folder: str, seed: str, run: str) -> None:
    """Run one process."""
    one = ROLES[role](Path(folder), int(seed), run)
    try:
        one.work()
    except LogUnavailableError as error:
        if "append lock" not in str(error):
            raise
        one.note("unavailable")
    one.log.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
