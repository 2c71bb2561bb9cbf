"""Key and event time declared once, on the event type, for all topics of that type.

    class Order(msgspec.Struct, tr.Keyed[str], frozen=True):
        shop: tr.Key[str]
        at: tr.EventTime[int]

    orders = app.topic("orders", Order)     # a tr.Topic[Order, str], with the event time "at"

To a type checker ``tr.Key[str]`` is ``str``: it cannot derive the key of a class from a field.
``tr.Keyed[str]`` declares the key a second time for the checker. The declaration of a topic compares the two.
"""

from __future__ import annotations

from collections.abc import Iterator
from types import UnionType
from typing import (
    TYPE_CHECKING,
    Annotated,
    Any,
    Final,
    Generic,
    Protocol,
    Self,
    TypeAlias,
    Union,
    get_args,
    get_origin,
)

from typing_extensions import TypeVar

from tailrace.core.errors import DefinitionError
from tailrace.core.values.event_fields import event_fields
from tailrace.core.values.key_paths import Path, members_of, named_type
from tailrace.core.values.types import spell

T = TypeVar("T")
K = TypeVar("K")
F = TypeVar("F", bound="Path | None")
E_co = TypeVar("E_co", covariant=True)
K_co = TypeVar("K_co", covariant=True)


class Mark:
    """The role of a field of an event type: key or event time."""

    __slots__ = ("name",)

    def __init__(self, name: str) -> None:
        self.name = name

    def __repr__(self) -> str:
        return f"tailrace.{self.name}"


_KEY: Final = Mark("Key")
_EVENT_TIME: Final = Mark("EventTime")

Key: TypeAlias = Annotated[T, _KEY]
"""``tail: tr.Key[str]``: a str, and the key of the event. Several marked fields make a tuple, in their order.
"""

EventTime: TypeAlias = Annotated[T, _EVENT_TIME]
"""``at: tr.EventTime[int]``: the time of the event, an int of milliseconds since 1970 or an aware datetime.
"""


class Keyed(Generic[K]):
    """A second base class of an event type: it gives type checkers the type of the key.

    ``class Order(msgspec.Struct, tr.Keyed[str])`` makes ``app.topic("orders", Order)`` a ``tr.Topic[Order,
    str]``; without it the key is ``Any`` to a checker. The fields of the key are marked with ``tr.Key``;
    several make a tuple (``tr.Keyed[tuple[str, int]]``). It adds nothing to an event, and has no effect where
    a topic names another ``key=``.
    """

    __slots__ = ()

    if TYPE_CHECKING:

        @classmethod
        def _keyed(cls) -> tuple[Self, K]: ...


class KeyedType(Protocol[E_co, K_co]):
    """A class of events E that is ``Keyed[K]``, for type checkers."""

    def _keyed(self) -> tuple[E_co, K_co]: ...


def marked_key(declared: Any, where: str) -> Path | None:
    """The key fields marked in an event type, None if none are. Members of a union must have the same.

    Raises:
        DefinitionError: A mark has no type, or the members of a union differ. ``where`` begins the message.
    """
    return _shared(declared, where, "key", [_key(member, where) for member in members_of(declared)])


def marked_event_time(declared: Any, where: str) -> str | None:
    """The field that is marked as the event time, as in ``marked_key``. A class may mark only one."""
    return _shared(
        declared, where, "event_time", [_event_time(member, where) for member in members_of(declared)]
    )


def _shared(declared: Any, where: str, option: str, found: list[F]) -> F | None:
    members = members_of(declared)
    for member, one in zip(members, found, strict=True):
        if one != found[0]:
            raise DefinitionError(
                f"{where}: its events are marked differently: {option} is {_path_text(found[0])} in "
                f"{spell(members[0])}, {_path_text(one)} in {spell(member)}",
                hint=f"Mark the same fields in each, or give the topic {option}=.",
            )
    return found[0] if found else None


def keyed_type(declared: Any) -> Any:
    """The type in ``Keyed[...]`` among the bases of a class, or None if it is missing or a type variable."""
    cls = get_origin(declared) or declared
    for base in getattr(cls, "__mro__", ()):
        for one in base.__dict__.get("__orig_bases__", ()):
            if get_origin(one) is Keyed and not isinstance(get_args(one)[0], TypeVar):
                return get_args(one)[0]
    return None


def _key(cls: Any, where: str) -> Path | None:
    names = _fields_with(_KEY, cls, where)
    return None if not names else names[0] if len(names) == 1 else tuple(names)


def _event_time(cls: Any, where: str) -> str | None:
    names = _fields_with(_EVENT_TIME, cls, where)
    if len(names) > 1:
        raise DefinitionError(
            f"{where}: {spell(cls)} marks {' and '.join(names)} as its event time", hint="Mark one field."
        )
    return names[0] if names else None


def _fields_with(wanted: Mark, cls: Any, where: str) -> list[str]:
    names: list[str] = []
    for field in event_fields(cls).values():
        for mark, marked in _marked(field.type):
            if mark is wanted:
                names.append(field.name)
                if isinstance(marked, TypeVar):
                    raise DefinitionError(
                        f"{where}: {spell(cls)}.{field.name} is annotated {mark!r} alone, without its type",
                        hint=f"Write tr.{mark.name}[...] with the type of the field in the brackets.",
                    )
    return names


def _marked(annotation: Any) -> Iterator[tuple[Mark, Any]]:
    """The marks of a field, ``tr.Key[str] | None`` included, each with the type that it marks."""
    if get_origin(annotation) is Annotated:
        for one in annotation.__metadata__:
            if isinstance(one, Mark):
                yield one, annotation.__origin__
            elif get_origin(one) is Annotated:  # Annotated[str, tr.Key]
                yield from ((mark, annotation.__origin__) for mark, _ in _marked(one))
        yield from _marked(annotation.__origin__)
    elif (inner := named_type(annotation)) is not None:
        yield from _marked(inner)
    elif get_origin(annotation) is Final:
        yield from _marked(get_args(annotation)[0])
    elif get_origin(annotation) in (Union, UnionType):
        for member in get_args(annotation):
            yield from _marked(member)


def _path_text(found: Path | None) -> str:
    return "not marked" if found is None else repr(found)
