"""What a user sees when state is printed."""

import msgspec
import pytest

import tailrace as tr
from tailrace.testing import Harness


class Visit(msgspec.Struct, frozen=True):
    ship: str
    port: str


app = tr.App("shown")
visits = app.topic("visits", Visit, key="ship")
shown: list[str] = []


@app.actor
class Ship(tr.Actor):
    calls: tr.MapState[str, list[int]]
    log: tr.ListState[str]

    @tr.process(visits)
    def call(self, event: Visit, ctx: tr.Context[str]) -> None:
        self.calls[event.port] = [len(self.log)]
        self.log.append(event.port)
        shown.append(f"{self.calls!r} {self.log!r}")


@pytest.mark.parametrize("reload", [False, True])
def test_a_map_and_a_list_show_their_entries_in_a_handler_and_afterwards(reload):
    shown.clear()
    with Harness(app, reload=reload) as h:
        h.send(visits, Visit("Ada", "Riga"), Visit("Ada", "Oslo"))
        h.crash()
        h.send(visits, Visit("Ada", "Bonn"))
        ship = h.state(Ship, "Ada")
        assert ship is not None
        assert repr(ship.calls) == "MapState({'Bonn': [2], 'Oslo': [1], 'Riga': [0]})"
        assert repr(ship.log) == "ListState(['Riga', 'Oslo', 'Bonn'])"
        assert shown == [
            "MapState({'Riga': [0]}) ListState(['Riga'])",
            "MapState({'Oslo': [1], 'Riga': [0]}) ListState(['Riga', 'Oslo'])",
            "MapState({'Bonn': [2], 'Oslo': [1], 'Riga': [0]}) ListState(['Riga', 'Oslo', 'Bonn'])",
        ]
        h.replay()


def test_of_a_large_map_or_list_only_the_first_entries_are_shown():
    with Harness(app) as h:
        h.send(visits, *[Visit("Ada", f"{n:03}") for n in range(30)])
        ship = h.state(Ship, "Ada")
        assert ship is not None
        assert repr(ship.calls).endswith("'019': [19], ...})")
        assert repr(ship.log).endswith("'019', ...])")
