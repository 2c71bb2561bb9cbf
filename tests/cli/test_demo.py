"""``tailrace demo``: kill, resume, replay, in a folder of its own."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tailrace.demo import session
from tailrace.demo.session import DemoFailedError
from tests.cli.commands import done, refused, run

pytestmark = pytest.mark.usefixtures("quiet_logs")


def test_the_service_is_killed_resumes_and_is_replayed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TAILRACE_LOG", str(tmp_path / "elsewhere"))  # a setting of another service
    folder = tmp_path / "a" / "first look"
    ended = done("demo", folder)
    before, after = map(int, re.findall(r"([0-9]+) of ([0-9]+) alerts out", ended.out.replace(",", ""))[0])
    assert 0 < before < after
    assert f"{after:,} alerts, as in a loop of plain Python" in ended.out
    assert re.search(r"100,100 payments .* [1-9][0-9]* rows of state .* 0 bytes differ", ended.out)
    assert not (tmp_path / "elsewhere").exists()
    monkeypatch.delenv("TAILRACE_LOG")
    monkeypatch.chdir(folder)
    typed = re.findall(r"^  tailrace (\S.*\S) +#", ended.out, re.MULTILINE)
    assert len(typed) == 5
    for one in typed[:3]:  # the others take longer
        assert done(*one.split()).out, one
    again = run("demo", folder)
    assert (again.code, "is not empty" in again.err) == (2, True)


def test_a_place_that_cannot_be_a_folder_is_a_wrong_argument() -> None:
    assert "cannot be made" in refused("demo", "/proc/self/demo")


def test_a_result_that_is_not_that_of_plain_python_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(session, "PAYMENTS", 20_000)
    monkeypatch.setattr(session, "expected", lambda paid: [("card-0001", 1, 1)])
    with pytest.raises(DemoFailedError, match="plain Python finds 1"):
        session.run_session(tmp_path, lambda _step, _said: None)
