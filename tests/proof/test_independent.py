"""With one input, or ordered operators, no messages and no processing time, nothing is left to chance: every run gives the
same bytes.

Here nobody follows a tape. Each run reads the same records, with slices, commits, crashes and settings of its own.
"""

from __future__ import annotations

import pytest

from tests.proof.independent import check_any_order, check_seed
from tests.proof.seeds import each


@pytest.mark.one_seed_in(5)  # one takes 25 ms
def test_independent_runs_over_one_input_give_the_same_bytes(seeds: range) -> None:
    each(seeds, check_seed)


@pytest.mark.one_seed_in(5)  # one takes 60 ms
def test_ordered_operators_give_the_same_bytes_in_whatever_order_the_inputs_are_taken(seeds: range) -> None:
    each(seeds, check_any_order)
