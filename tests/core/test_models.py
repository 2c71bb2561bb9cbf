"""Events as pydantic models: decoded as pydantic validates, written so that every reader gets what was
emitted.
"""

from __future__ import annotations

import itertools
from datetime import UTC, datetime
from decimal import Decimal
from typing import Annotated, Any
from uuid import uuid4

import msgspec
import pydantic
import pytest

import tailrace as tr
from tailrace.core.errors import EmittedTypeError, EventValueError
from tailrace.core.records import Output
from tailrace.testing import Harness

_number = itertools.count()


class Line(pydantic.BaseModel):
    article: str
    price: Decimal


class Order(pydantic.BaseModel, tr.Keyed[str], frozen=True):
    shop: tr.Key[str]
    at: Annotated[tr.EventTime[int], pydantic.Field(ge=0)]
    lines: list[Line] = []
    note: str | None = pydantic.Field(default=None, alias="remark", max_length=5)
    rates: dict[str, float] = {}


class Shout(pydantic.BaseModel):
    """Its validator may be applied any number of times."""

    text: tr.Key[str]

    @pydantic.field_validator("text")
    @classmethod
    def upper(cls, text: str) -> str:
        return text.upper()


class Growing(pydantic.BaseModel):
    """Its validator changes what it has already changed."""

    text: tr.Key[str]

    @pydantic.field_validator("text")
    @classmethod
    def longer(cls, text: str) -> str:
        return f"{text}!"


class Unlike(pydantic.BaseModel):
    """Each time that it is read it is another."""

    text: str

    @pydantic.field_validator("text")
    @classmethod
    def numbered(cls, text: str) -> str:
        return f"{text.partition('#')[0]}#{next(_number)}"


class Free(pydantic.BaseModel, extra="allow"):
    what: Any


class Tags(pydantic.BaseModel):
    tags: set[str]


def topic_of(type: Any, **options: Any) -> tr.Topic[Any, Any]:
    return tr.App("models").topic("events", type, **options)


def test_key_event_time_and_fields_are_those_of_the_model() -> None:
    topic = topic_of(Order)
    event = Order(shop="Ada", at=7, lines=[Line(article="tea", price=Decimal("1.50"))], remark="x")
    assert (topic.key_type, topic.encode_key(event)) == (str, b"Ada")
    assert topic.time_of is not None
    assert topic.time_of(event) == 7
    written = topic.encode_emitted(event)
    assert written == (
        b'{"at":7,"lines":[{"article":"tea","price":"1.50"}],"rates":{},"remark":"x","shop":"Ada"}'
    )
    assert topic.decode(written) == event
    topic.codec.check(event)


@pytest.mark.parametrize("declared", [datetime, pydantic.AwareDatetime, datetime | None])
def test_the_event_time_may_be_a_datetime(declared: Any) -> None:
    event_type: Any = pydantic.create_model("Seen", ship=str, at=declared)
    topic = topic_of(event_type, key="ship", event_time="at")
    assert topic.time_of is not None
    assert topic.time_of(event_type(ship="Ada", at=datetime(1970, 1, 1, 0, 0, 2, tzinfo=UTC))) == 2_000


def test_equal_models_have_equal_bytes_whatever_the_order_of_their_dicts() -> None:
    topic = topic_of(Order)
    one, other = ({"a": 1.0, "b": 2.0}, {"b": 2.0, "a": 1.0})
    assert topic.encode(Order(shop="A", at=1, rates=one)) == topic.encode(Order(shop="A", at=1, rates=other))


def test_what_pydantic_refuses_is_an_undecodable_record() -> None:
    with pytest.raises(msgspec.ValidationError, match="at: Input should be greater than or equal to 0"):
        topic_of(Order).decode(b'{"shop":"Ada","at":-1}')
    with pytest.raises(msgspec.ValidationError, match="Invalid JSON"):
        topic_of(Order).decode(b"{")


def test_a_checked_run_finds_a_validator_that_is_no_function_of_the_event() -> None:
    topic, event = topic_of(Unlike), Unlike(text="a")
    with pytest.raises((EmittedTypeError, EventValueError)):
        topic.codec.check(event)


class Excluding(pydantic.BaseModel):
    a: int = pydantic.Field(default=0, exclude=True)


class Private(pydantic.BaseModel):
    a: int
    _b: int = 0


class OneWay(pydantic.BaseModel):
    a: int = pydantic.Field(validation_alias="b")


@pydantic.dataclasses.dataclass
class Half:
    a: int


class Unknown(pydantic.BaseModel):
    what: Nowhere  # type: ignore[name-defined]  # pyright: ignore[reportUndefinedVariable]  # noqa: F821  # what is refused here


class Varying(pydantic.BaseModel):
    a: str = pydantic.Field(default_factory=lambda: str(uuid4()))


@pytest.mark.parametrize(
    ("declared", "options", "said"),
    [
        (Varying, {}, r"Varying\.a has a default_factory that returns a different value at each call"),
        (pydantic.RootModel[int], {}, "RootModel"),
        (Half, {}, "a pydantic dataclass, whose validators would not run"),
        (Unknown, {}, r"an annotation of .*Unknown cannot be looked up: .*Nowhere"),
        (Order | Shout, {}, "cannot be distinguished"),
        (Order, {"format": "msgpack"}, "pydantic models are written as JSON"),
        (Order, {"key": "shops"}, "Did you mean 'shop'"),
        (Order, {"event_time": "when"}, "Order has no field 'when'"),
        (Order, {"event_time": "lines"}, "is of type list"),
    ],
)
def test_a_model_that_cannot_be_a_type_of_events_is_refused(declared: Any, options: Any, said: str) -> None:
    with pytest.raises(tr.DefinitionError, match=said):
        topic_of(declared, **options)


def test_models_go_through_a_service_and_its_replay() -> None:
    app = tr.App("shops")
    orders = app.topic("orders", Order)
    shouts = app.topic("shouts", Shout)

    @app.actor
    class Shop(tr.Actor):
        total: Decimal = Decimal(0)

        @tr.process(orders)
        def ordered(self, event: Order, ctx: tr.Context[str]) -> None:
            self.total += sum((line.price for line in event.lines), Decimal(0))
            ctx.set_timer(event.at + 1_000, "told")

        @tr.on_timer("told")
        def told(self, ctx: tr.Context[str]) -> None:
            ctx.emit(shouts, Shout(text=f"{ctx.key} has {self.total}"))

    line = Line(article="tea", price=Decimal("1.5"))
    with Harness(app) as h:
        h.send(orders, Order(shop="Ada", at=10_000, lines=[line]))
        h.send(orders, Order(shop="Ada", at=10_100, lines=[line, line]))
        h.crash()
        assert h.advance_watermark(20_000).to(shouts) == [Shout(text="ADA HAS 4.5")]
        h.replay()


class Payment(pydantic.BaseModel):
    amount: int


class Card(Payment):
    number: str = ""


class Sold(pydantic.BaseModel):
    shop: tr.Key[str]
    payment: Payment | None = None
    counts: dict[int | str, int] = {}
    words: bytes | str | None = None


class Odd(pydantic.BaseModel):
    n: int

    @pydantic.field_serializer("n")
    def spelled(self, n: int) -> str:
        return f"number {n}"


def private() -> Private:
    made = Private(a=1)
    made._b = 2
    return made


LOST: list[tuple[Any, str]] = [
    (Growing(text="hey"), r"text is not what was emitted.*f\(f\(x\)\)"),
    (Odd(n=1), "its readers could not decode it: n:"),
    (Order.model_construct(shop="Ada", at="soon"), "at"),
    (Order(shop="A", at=1, rates={"a": float("nan")}), r"rates\['a'\] is nan, which JSON cannot write"),
    (Order(shop="A", at=1, rates={"a": float("inf")}), r"rates\['a'\] is inf, which JSON cannot write"),
    (Free(what={"a", "b"}), "what is not what was emitted"),
    (Excluding(a=1), "is not what was emitted"),
    (private(), "is not what was emitted"),
    (OneWay.model_validate({"b": 1}), "could not decode"),
    (Sold(shop="a", payment=Card(amount=3, number="4711")), "payment is not what was emitted"),
    (Sold(shop="a", counts={1: 10, "1": 20}), "counts is not what was emitted"),
    (Sold(shop="a", words="abc"), "words is not what was emitted"),
]


@pytest.mark.parametrize(("event", "said"), LOST)
def test_what_its_readers_would_not_get_is_refused_at_the_emit(event: Any, said: str) -> None:
    with pytest.raises(EventValueError, match=said):
        topic_of(type(event)).encode_emitted(event)


def test_what_its_readers_get_is_not_refused() -> None:
    same = Sold(shop="a", payment=Payment(amount=3), counts={"x": 1}, words=b"abc")
    topic = topic_of(Sold)
    assert topic.decode(topic.encode(same)) == same
    more = Free.model_validate({"what": [1], "more": {"b": 1, "a": 2}})
    assert topic_of(Free).encode_emitted(more) == b'{"more":{"a":2,"b":1},"what":[1]}'


def test_a_set_is_read_and_never_emitted() -> None:
    topic = topic_of(Tags)
    assert topic.decode(b'{"tags":["a"]}') == Tags(tags={"a"})
    with pytest.raises(tr.DefinitionError, match="it contains a set"):
        topic.encode_emitted(Tags(tags={"a"}))


class Rated(pydantic.BaseModel):
    shop: tr.Key[str]
    currency: str = "EUR"

    @pydantic.field_validator("currency")
    @classmethod
    def known(cls, currency: str) -> str:
        return {"EUR": "EUR"}[currency]


def test_a_validator_that_raises_anything_makes_a_dead_letter_and_stops_nothing() -> None:
    app = tr.App("rated", partitions=1, on_error="dead-letter-all")
    rated = app.topic("rated", Rated)

    @app.actor
    class Shop(tr.Actor):
        seen: int = 0

        @tr.process(rated)
        def take(self, event: Rated, ctx: tr.Context[str]) -> None:
            self.seen += 1

    with Harness(app) as h:
        for currency in ("EUR", "XXX", "EUR"):
            value = b'{"shop":"a","currency":"%s"}' % currency.encode()
            h.log.append_all([Output("rated", b"a", value, 0)])
        h.advance_clock_by(0)
        shop = h.state(Shop, "a")
        assert shop is not None
        assert shop.seen == 2
        (letter,) = h.dead_letters()
        assert "KeyError: 'XXX'" in letter.error
        h.replay()
