"""A plain field with a time to live goes back to its default once, and then rests."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

import tailrace as tr
from tailrace.core.errors import DefinitionError
from tailrace.testing import Harness


class Seen(msgspec.Struct):
    key: str
    at: int


def fading_app(*, required: bool) -> tr.App:
    """An actor whose field is a float with an int as its default, or that has a field without default, too."""
    app = tr.App("fading", partitions=1)
    topic = app.topic("seen", Seen, key="key", event_time="at")

    if required:

        @app.actor(name="Fading")
        class Named(tr.Actor):
            name: str
            share: int = tr.field(default=0, ttl="1s")

            @tr.process(topic)
            def see(self, event: Seen, ctx: tr.Context[str]) -> None:
                self.name = event.key
                if event.at == 0:
                    self.share = 1

    else:

        @app.actor(name="Fading")
        class Nameless(tr.Actor):
            share: float = tr.field(default=0, ttl="1s")

            @tr.process(topic)
            def see(self, event: Seen, ctx: tr.Context[str]) -> None:
                if event.at == 0:
                    self.share = 1.0

    return app


@pytest.mark.parametrize("required", [False, True])
def test_a_field_that_is_back_to_its_default_does_not_expire_again(required: bool) -> None:
    app = fading_app(required=required)
    with Harness(app) as h:
        h.send(app.topics["seen"], Seen("a", 0), *(Seen("b", at) for at in range(1_000, 10_000, 1_000)))
        assert h._service.task(0).totals.fired == 1
        actor: Any = app.actors["Fading"]
        found: Any = h.state(actor, "a")
        assert found is None if not required else (found.name, found.share) == ("a", 0)
        h.replay()


def test_a_default_that_is_not_of_the_field_s_type_is_refused() -> None:
    app = tr.App("fading", partitions=1)
    topic = app.topic("seen", Seen, key="key", event_time="at")
    wrong: Any = "none"

    @app.actor
    class Fading(tr.Actor):
        share: float = tr.field(default=wrong, ttl="1s")

        @tr.process(topic)
        def see(self, event: Seen, ctx: tr.Context[str]) -> None: ...

    with pytest.raises(
        DefinitionError, match=r"Fading\.share has the default 'none', which is not of its type"
    ):
        app.plan()
