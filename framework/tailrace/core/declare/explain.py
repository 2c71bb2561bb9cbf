"""Explains an AttributeError of a handler: the actor does not have the attribute."""

from __future__ import annotations

import re
from typing import Any

from tailrace.core.declare.actor import Actor, declaration_of
from tailrace.core.suggestions import did_you_mean

_NO_ATTRIBUTE = re.compile(
    r"'(?:[^']*\.)?(\w+)' object (?:has no attribute '(\w+)'|attribute '(\w+)' is read-only)"
)


def explain_attribute_error(error: AttributeError) -> str | None:
    """Explain an AttributeError about an attribute that the actor does not have; None for any other error.

    The text names the class, the attribute and the hint; a task adds it to the exception as a note.
    """
    match = _NO_ATTRIBUTE.search(str(error))
    if match is None:
        return None
    name, attr = match[1], match[2] or match[3]
    cls = _actor_class(error, name)
    if cls is None:
        return None
    fields = declaration_of(cls).fields
    if any(one.attr == attr for one in fields):
        return (
            f"{name}.{attr} was read before it had a value. "
            f"Give the field a default, or set it in every handler that may be a key's first."
        )
    if hasattr(cls, attr):
        return f"{name}.{attr} is not a durable field. Annotate it in the class: {attr}: type = default."
    hint = did_you_mean(
        attr, [one.attr for one in fields], f"Declare it in the class: {attr}: type = default."
    )
    return f"{name} has no durable field {attr!r}. {hint}"


def _actor_class(error: AttributeError, name: str) -> type[Any] | None:
    """The actor class that an error is about.

    Python gives the object for a failed read, but not for a failed assignment.
    """
    if isinstance(error.obj, Actor):
        return type(error.obj)
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    held = [] if trace is None else list(trace.tb_frame.f_locals.values())
    return next((type(one) for one in held if isinstance(one, Actor) and type(one).__name__ == name), None)
