"""A client of Kafka that does not come back must not keep its process from ending."""

from __future__ import annotations

import subprocess
import sys

import pytest

_PROGRAM = """
import sys
from tailrace.log.kafka.library import never_freed

class Client:
    def __init__(self):
        self.callback = lambda: self  # a circle, as a client is part of one

    def __del__(self):
        print("freed", flush=True)

client = Client()
if sys.argv[1] == "left":
    never_freed(client)
"""


@pytest.mark.parametrize(("how", "said"), [("left", ""), ("closed", "freed")])
def test_a_client_that_is_left_is_not_freed_at_the_end_either(how: str, said: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PROGRAM, how], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout.strip() == said
