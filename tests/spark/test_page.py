"""The page on Spark, run: its commands in this process, its Python with the session of these tests."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from tests.cli.commands import done

PAGE = Path(__file__).parents[2] / "docs" / "spark.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_on_spark_does_what_it_says(spark, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found: dict[str, Any] = {}
    for kind, text in BLOCK.findall(PAGE.read_text("utf-8")):
        if kind == "sh":
            for line in text.splitlines():
                done(*line.split()[1:])
        elif kind == "python":
            # Workers were started in another folder.
            exec(text.replace('"data/', f'"{tmp_path}/data/'), found)
    assert found["spark"] is spark
    assert found["raw"].columns == ["topic", "partition", "offset", "timestamp", "key", "value", "headers"]
    assert found["events"].columns[:4] == ["sensor", "at_ms", "fahrenheit", "_topic"]
    assert {row.at_ms for row in found["hot"].collect()} == set(range(2_000, 9_000, 500))
    assert found["raw"].count() == found["events"].count() == found["same"].count() == 36
    assert found["history"].count() == 36
    assert {row.key for row in found["rising"].collect()} == {"hall", "attic"}
    assert found["windows"].columns == ["key", "entry", "value", "expires"]
    assert set(found["pending"].columns) >= {"actor", "key", "time"}
    assert '"mended"' in done("snapshot", "list", "sensors", "--snapshots", "data/snapshots", "--json").out
