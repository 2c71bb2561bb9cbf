"""What a misspelt name was meant to be."""

from __future__ import annotations

import pytest

from tailrace.core.suggestions import did_you_mean, nearest

NAMES = ("departures", "arrivals", "overdue-flights", "startingOffsets")


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        *(("depatures", "departures"), ("departure", "departures"), ("Arrivals", "arrivals")),
        *(("overdue_flights", "overdue-flights"), ("overdueflights", "overdue-flights")),
        *(("startingofsets", "startingOffsets"), ("weather", None), ("", None), (17, None)),
    ],
)
def test_the_nearest_name_is_found_if_one_is_near(given: object, meant: str | None) -> None:
    assert nearest(given, NAMES) == meant


def test_a_sentence_comes_before_what_else_is_said() -> None:
    assert did_you_mean("arivals", NAMES, "There are two.") == "Did you mean 'arrivals'? There are two."
    assert did_you_mean("arivals", NAMES) == "Did you mean 'arrivals'?"
    assert did_you_mean("weather", NAMES, "There are two.") == "There are two."
    assert did_you_mean("weather", NAMES) == did_you_mean("weather", ()) == ""
