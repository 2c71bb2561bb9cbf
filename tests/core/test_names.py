"""Names of topics and transactional ids: what belongs to an app, and what to another."""

from __future__ import annotations

import pytest

from tailrace.core.names import (
    own_topics_of,
    process_transactional_id,
    redrive_transactional_id,
    task_of,
    transactional_id,
)


@pytest.mark.parametrize("app", ["shop", "shop-2", "shop.eu"])
def test_the_id_of_a_task_gives_its_app_and_partition(app: str) -> None:
    assert task_of(transactional_id(app, 12)) == (app, 12)


@pytest.mark.parametrize(
    "name", [process_transactional_id("shop", "a1f"), redrive_transactional_id("shop"), "shop", "-1", ""]
)
def test_another_id_is_of_no_task(name: str) -> None:
    assert task_of(name) is None


def test_the_own_topics_of_an_app_are_not_those_of_another_whose_name_begins_alike() -> None:
    assert own_topics_of("shop").isdisjoint(own_topics_of("shop.eu") | own_topics_of("shops"))
