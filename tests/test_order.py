"""The order in which the workers of pytest-xdist run the tests."""

from __future__ import annotations

import pytest

from tests.order import long_first


@pytest.mark.parametrize("workers", [1, 2, 3, 4])
@pytest.mark.parametrize("others", [0, 1, 5, 30])
def test_every_test_is_run_once(workers: int, others: int) -> None:
    found = long_first("abcdefg", "." * others, workers)
    assert sorted(found) == sorted("abcdefg" + "." * others)


def test_each_worker_begins_with_its_share_of_the_long_tests() -> None:
    assert "".join(long_first("ABCDE", "123456789", 4)) == "AE1" + "B23" + "C456" + "D789"
