from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from schemas.shapes import Shape
from services.shapes import Colour, app, by_colour, colour_counts, shapes
from tailrace.testing import Harness

DRAWN = [
    Shape("d1", "circle", "yellow"),
    Shape("d2", "square", "blue"),
    Shape("d3", "circle", "orange"),
    Shape("d4", "triangle", "yellow"),
    Shape("d5", "square", "yellow"),
    Shape("d6", "square", "orange"),
    Shape("d7", "circle", "blue"),
    Shape("d8", "circle", "yellow"),
    Shape("d9", "triangle", "blue"),
]


def counts_of(events, colour):
    return [event.count for event in events if event.colour == colour]


def test_yellow_counts_to_four_and_blue_to_three_in_one_topic_and_orange_is_not_there():
    with Harness(app) as h:
        h.send(shapes, *DRAWN)
        found = h.emitted(colour_counts)
        assert len(found) == 7
        assert counts_of(found, "yellow") == [1, 2, 3, 4]
        assert counts_of(found, "blue") == [1, 2, 3]
        assert h.state(Colour, "orange") is None
        assert sorted(h.keys(Colour)) == ["blue", "yellow"]
        h.replay()


def test_what_is_not_orange_is_passed_on_unchanged_under_its_colour():
    with Harness(app) as h:
        out = h.send(shapes, *DRAWN)
        passed = [o for o in out if o.topic == by_colour.name]
        assert sorted(o.event.drawing for o in passed) == ["d1", "d2", "d4", "d5", "d7", "d8", "d9"]
        assert all(o.key == o.event.colour and o.event in DRAWN for o in passed)


@given(st.lists(st.sampled_from(["yellow", "blue", "orange", "green"]), max_size=40))
def test_every_colour_but_orange_counts_from_one_without_a_gap(colours):
    with Harness(app) as h:
        h.send(shapes, *[Shape(f"d{n}", "circle", colour) for n, colour in enumerate(colours)])
        found = h.emitted(colour_counts)
        expected = Counter(colour for colour in colours if colour != "orange")
        assert {c: counts_of(found, c) for c in expected} == {
            c: list(range(1, total + 1)) for c, total in expected.items()
        }
        assert len(found) == expected.total()
        h.replay()
