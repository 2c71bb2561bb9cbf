"""``tailrace log append`` on Kafka: killed and repeated it appends each row once, and a topic that is created again gets all rows."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections import Counter
from contextlib import closing
from pathlib import Path

from tailrace.log.kafka import KafkaLog
from tests.cli.commands import done
from tests.kafka.outside import messages
from tests.soak.processes import wait_until

ROWS = 100_000


def test_an_append_that_is_killed_and_repeated_appends_each_row_once(kafka_url: str, tmp_path: Path) -> None:
    file = tmp_path / "rows.jsonl"
    file.write_text("".join(f'{{"n":{row}}}\n' for row in range(ROWS)))
    done("log", "create", "raw", "--partitions", 2, "--log", kafka_url)
    command = ["log", "append", "raw", str(file), "--key", "n", "--log", kafka_url]
    bootstrap, _, prefix = kafka_url.removeprefix("kafka://").partition("/")

    def keys() -> Counter[bytes]:
        found = messages(bootstrap, f"{prefix}raw")
        return Counter(one.key() or b"" for partition in found for one in partition)

    with closing(KafkaLog(kafka_url)) as log:
        process = subprocess.Popen([sys.executable, "-m", "tailrace", *command], env=os.environ)
        wait_until(lambda: log.end_offset("raw", 0) > 0, "rows are appended")
        process.kill()
        assert process.wait() == -signal.SIGKILL
        assert len(keys()) < ROWS
        done(*command)
        assert keys() == dict.fromkeys((row.to_bytes(8, "big") for row in range(ROWS)), 1)
        log.admin.delete_topics(["raw"])
        wait_until(lambda: "raw" not in log.topics(), "it is gone")
    done("log", "create", "raw", "--partitions", 2, "--log", kafka_url)
    done(*command)
    assert keys().total() == ROWS
