"""Outside of ``log`` no module knows a concrete log; ``log.opening`` opens all of them."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest

from tailrace.core.errors import LogUnavailableError
from tailrace.log.opening import is_url, open_log

PROJECT = Path(__file__).parents[2] / "pyproject.toml"


def test_no_module_outside_is_excepted() -> None:
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (contract,) = (one for one in contracts if one["name"] == "only log.opening knows a concrete log")
    assert "ignore_imports" not in contract


def test_a_log_is_opened_again_by_its_place(tmp_path: Path) -> None:
    with pytest.raises(LogUnavailableError, match="there is no log"):
        open_log(tmp_path / "log")
    log = open_log(tmp_path / "log", create=True)
    again = open_log(log.place)
    assert again.identity == log.identity
    again.close()
    log.close()


def test_the_place_of_a_cluster_has_its_addresses_and_its_prefix() -> None:
    log = open_log("kafka://127.0.0.1:1,127.0.0.1:2/staging.")
    assert log.place == "kafka://127.0.0.1:1,127.0.0.1:2/staging."
    assert is_url(log.place)
    log.close()
