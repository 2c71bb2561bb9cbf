"""A replay runs in another process with another hash seed, too, if that process can import the app."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import ReplayDivergedError
from tailrace.testing import Harness, other_seed

WORDS = [f"word{number}" for number in range(12)]
PATCHED = 1


class Said(msgspec.Struct):
    key: str
    do: str = ""


class Echo(msgspec.Struct):
    key: str
    words: list[str]


app = tr.App("seeds", partitions=2)
said = app.topic("said", Said, key="key")
echoes = app.topic("echoes", Echo, key="key")


def elements(words: list[str]) -> list[str]:
    return list({*words})


@app.actor
class Echoing(tr.Actor):
    words: list[str] = tr.field(default_factory=list)
    number: int = 0

    @tr.process(said)
    def say(self, event: Said, ctx: tr.Context[str]) -> None:
        match event.do:
            case "emit":
                ctx.emit(echoes, Echo(event.key, elements(WORDS)))
            case "store":
                self.words = elements(WORDS)
            case "sort":
                self.words = sorted({*WORDS})
            case "hash":
                self.number = hash(event.key)
            case "patched":
                self.number = PATCHED
            case _:
                self.number += 1


class TestOfAnAppInAModule:
    @pytest.mark.parametrize(
        ("do", "what"), [("emit", "output 0"), ("store", "words: "), ("hash", "number: ")]
    )
    def test_what_depends_on_the_hash_seed_is_found_and_named(self, do: str, what: str) -> None:
        with Harness(app) as h:
            h.send(said, Said("a", do))
            with pytest.raises(
                ReplayDivergedError, match=r"^under another hash seed .*sort before"
            ) as caught:
                h.replay()
            assert what in str(caught.value)

    @pytest.mark.parametrize("do", ["", "sort"])
    def test_what_does_not_is_the_same(self, do: str) -> None:
        with Harness(app, partitions=3) as h:
            h.send(said, *(Said(key, do) for key in "abcdef"))
            h.crash()
            report = h.replay()
        assert report.compared[-1] == "the log, under another hash seed"
        assert report.notes == []

    def test_it_can_be_left_out(self) -> None:
        with Harness(app) as h:
            h.send(said, Said("a", "store"))
            assert "the log, under another hash seed" not in h.replay(hash_seed=False).compared

    def test_what_is_patched_in_the_test_alone_is_a_difference_whose_mend_says_so(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys.modules[__name__], "PATCHED", 2)
        with Harness(app) as h:
            h.send(said, Said("a", "patched"))
            with pytest.raises(ReplayDivergedError, match=r"h\.replay\(hash_seed=False\)"):
                h.replay()
            h.replay(hash_seed=False)

    def test_one_process_serves_all_replays_and_another_comes_where_it_died(self) -> None:
        with Harness(app) as h:
            h.send(said, Said("a"))
            h.replay()
            first = other_seed._Other._current
            assert first is not None
            h.replay()
            assert other_seed._Other._current is first
            first._process.kill()
            first._process.wait()
            (note,) = h.replay().notes
            assert "ended with code -9" in note
            h.replay()
            assert other_seed._Other._current is not first

    def test_its_seed_is_not_the_one_that_the_environment_gives(self) -> None:
        script = """
        from tests.testing.test_hash_seeds import Said, app, said
        from tailrace.core.errors import ReplayDivergedError
        from tailrace.testing import Harness
        with Harness(app) as h:
            h.send(said, Said("a", "store"))
            try:
                h.replay()
            except ReplayDivergedError as error:
                print("found")
        """
        for seed in ("0", "1", "2"):
            environment = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": os.pathsep.join(sys.path)}
            done = subprocess.run(
                [sys.executable, "-c", textwrap.dedent(script)],
                env=environment,
                capture_output=True,
                check=True,
            )
            assert (done.stdout, done.stderr) == (b"found\n", b""), seed


def local_app(handle: Any) -> tuple[tr.App, Any]:
    """An app that no other process can find."""
    app = tr.App("local", partitions=1)
    topic = app.topic("said", Said, key="key")

    class Local(tr.Actor):
        words: list[str] = tr.field(default_factory=list)

        @tr.process(topic)
        def say(self, event: Said, ctx: tr.Context[str]) -> None:
            self.words = handle(event)

    app.actor(Local)
    return app, topic


class TestOfAnAppThatNoOtherProcessFinds:
    def test_the_report_says_that_it_was_not_replayed(self) -> None:
        app, topic = local_app(lambda event: [*{*WORDS}])
        with Harness(app) as h:
            h.send(topic, Said("a"))
            report = h.replay()
        assert report.notes == [
            "nothing was replayed under another hash seed: the app 'local' is no attribute of a module"
        ]

    def test_an_app_that_a_new_process_makes_otherwise_is_not_replayed_there(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = Path(__file__).read_text("utf-8")
        (tmp_path / "seeds_by_pid.py").write_text(source.replace('App("seeds"', 'App(f"seeds-{os.getpid()}"'))
        monkeypatch.syspath_prepend(str(tmp_path))
        seeds_by_pid = importlib.import_module("seeds_by_pid")
        with Harness(seeds_by_pid.app) as h:
            h.send(seeds_by_pid.said, seeds_by_pid.Said("a", "sort"))
            (note,) = h.replay().notes
            assert "was changed after its import" in note
