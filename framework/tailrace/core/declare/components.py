"""Components: a field of an actor that brings durable fields and timers of its own.

    hours: tr.Windows[Reading, float] = tr.windowed(windows.tumbling("1h"), agg.count())

The metaclass of actors replaces such a line by what the component declares. With the attribute ``hours`` and a part ``open`` there is
a plain field, map or list with the attribute ``hours__open``, stored as ``hours.open``. The component's own methods are
handlers ``hours__...``, and the attribute itself gives a handler the component's view of the instance. Everything else (storage, undo,
replay, snapshots, expiry) is that of ordinary fields and timers.

What a component computes is handed to a method of the actor that is decorated for it (``handlers.ResultRole``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from tailrace.core.declare.context import Context
from tailrace.core.declare.handlers import ResultRole, roles_of
from tailrace.core.errors import DefinitionError, UsageError


class Component:
    """The declaration of a composite field. A subclass says which parts it has, and gives handlers a view of an instance.

    ``spec`` says what its stored parts mean (the size of a window, the name of an aggregate). It is stored with the state: a task
    whose component has another one does not start on that state.
    """

    attr: str = ""
    """The attribute of the actor that it is, once the class is defined."""
    result_method: str | None = None
    """The method that takes its results."""
    place: int = 0
    """Its place among the components of the actor, in the order of declaration."""
    spec: str = ""
    result_type: Any = Any
    """The type of its results, as far as it is known."""

    def parts(self) -> Mapping[str, tuple[Any, Any]]:
        """The durable fields by name, each with its type and its default (None for a ``MapState`` or ``ListState``)."""
        raise NotImplementedError

    def handlers(self) -> Mapping[str, Callable[..., None]]:
        """Its own handlers by name: functions ``(self, ctx)`` of the actor, decorated with ``tr.on_timer(self.attr)`` and the like."""
        return {}

    def check(self, owner: str) -> None:
        """Refuse what does not fit the actor. Called when the attribute and the method for results are known."""

    def opened(self, instance: Any, fired_ms: int) -> Mapping[str, int]:  # noqa: ARG002
        """What is open in an instance whose timers have fired up to an instant, by name: for ``tailrace status --stored``."""
        return {}

    def view(self, instance: Any) -> Any:
        """What ``self.<attr>`` is in a handler."""
        raise NotImplementedError


class ComponentAttribute:
    """The class attribute of a composite field."""

    __slots__ = ("component",)

    def __init__(self, component: Component) -> None:
        self.component = component

    def __get__(self, instance: Any, owner: type[Any]) -> Any:
        return self.component if instance is None else self.component.view(instance)

    def __set__(self, instance: Any, value: Any) -> None:
        raise UsageError(
            f"{type(instance).__name__}.{self.component.attr} was assigned to, but it cannot be replaced",
            hint="Call its methods.",
        )


def context_of(instance: Any) -> Context[Any]:
    """The context of the handler that runs, for a view of its instance.

    Raises UsageError for an instance that no task has loaded.
    """
    try:
        found: Context[Any] = instance._tr_parts.table.cells.context
    except AttributeError:
        raise UsageError(
            f"{type(instance).__name__} was not loaded by a task",
            hint="The framework creates actors. In a test, send events with the harness.",
        ) from None
    return found


def _takes_results_of(function: Any, component: Component) -> bool:
    return any(isinstance(role, ResultRole) and role.component is component for role in roles_of(function))


def expand(
    owner: str, body: dict[str, Any], field: Callable[..., Any], inherited: int
) -> dict[str, Component]:
    """Replace the components in a class body by their parts. Returns them by attribute. ``field`` is ``tr.field``.

    ``inherited`` is the number of components that the bases have.

    Raises DefinitionError if one is used twice, has no type, or takes a name that the body has.
    """
    found = {attr: value for attr, value in body.items() if isinstance(value, Component)}
    annotations: dict[str, Any] = body["__annotations__"]
    for place, (attr, one) in enumerate(found.items(), inherited):
        if attr not in annotations:
            raise DefinitionError(
                f"{owner}.{attr} has no type", hint=f"Annotate it: {attr}: {type(one).__name__}[...]."
            )
        if one.attr:
            raise DefinitionError(
                f"{owner}.{attr} is the same object as a field {one.attr!r}",
                hint="Make a new one for each field.",
            )
        one.attr, one.place = attr, place
        methods = [name for name, value in body.items() if _takes_results_of(value, one)]
        if len(methods) > 1:
            raise DefinitionError(
                f"{owner}: the methods {methods[0]!r} and {methods[1]!r} both take the results of {attr!r}",
                hint="Keep one of them, and let it do the work of both.",
            )
        one.result_method = methods[0] if methods else None
        one.check(owner)
        del annotations[attr]
        body[attr] = ComponentAttribute(one)
        for name, (annotation, default) in one.parts().items():
            inner = f"{attr}__{name}"
            if inner in body or inner in annotations:
                raise DefinitionError(
                    f"{owner}.{inner} is a part of {owner}.{attr}", hint="Rename one of them."
                )
            annotations[inner] = annotation
            body[inner] = (
                field(name=f"{attr}.{name}")
                if default is None
                else field(default=default, name=f"{attr}.{name}")
            )
        for name, function in one.handlers().items():
            body[f"{attr}__{name}"] = function
    return found
