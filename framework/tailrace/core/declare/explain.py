"""Explains an AttributeError of a handler: the actor does not have the attribute."""

from __future__ import annotations

from tailrace.core.declare.actor import Actor, declaration_of
from tailrace.core.suggestions import did_you_mean


def explain_attribute_error(error: AttributeError) -> str | None:
    """A note for an attribute that an actor does not have; None for any other error.

    Python does not give the object of a failed assignment: its message names class and attribute.
    """
    if not isinstance(error.obj, Actor):
        return None
    cls, attr = type(error.obj), error.name
    known = [one.attr for one in declaration_of(cls).fields]
    if attr in known:
        return (
            f"{cls.__name__}.{attr} was read before it had a value. "
            "Give the field a default, or set it in every handler that may be a key's first."
        )
    hint = did_you_mean(attr, known, f"Declare it in the class: {attr}: type = default.")
    return f"{cls.__name__} has no durable field {attr!r}. {hint}"
