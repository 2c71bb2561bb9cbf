"""The canonical order depends on the records alone: not on how they are read, or on commits."""

from __future__ import annotations

import pytest

from tests.proof.canonical_orders import check_messages, check_order, check_partition
from tests.proof.seeds import each


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_one_partition_comes_to_the_same_bytes_however_it_is_read_and_along_its_own_tape(
    seeds: range,
) -> None:
    each(seeds, check_partition)


@pytest.mark.one_seed_in(5)  # one takes 15 ms
def test_the_order_is_that_of_the_live_merge_with_everything_at_hand(seeds: range) -> None:
    each(seeds, check_order)


@pytest.mark.one_seed_in(5)  # one takes 40 ms
def test_an_app_whose_messages_are_delivered_comes_to_the_same_bytes_and_along_its_own_tapes(
    seeds: range,
) -> None:
    each(seeds, check_messages)
