"""Annotations resolved to types, in the scope where they were written, as soon as their names are known.

With ``from __future__ import annotations`` an annotation is a string until its names are looked up. They are
looked up in the module and, for a class or function defined inside a function (as in a test), among that
function's locals. A name that is defined further down is looked up again when the app is planned.
"""

from __future__ import annotations

import inspect
import sys
import types
from collections.abc import Iterable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from tailrace.core.errors import DefinitionError

_RUN_TIME_HINT = "Import or define it at the top of the module, and not only under TYPE_CHECKING."


class UnresolvedName(Exception):
    """A name in an annotation is not known (yet): a DefinitionError where it should be known by now."""


if sys.version_info >= (3, 14):
    # Annotations are evaluated when they are asked for (PEP 649). If a name in them is not known yet, all of them are taken as text,
    # as they are with ``from __future__ import annotations``.
    from annotationlib import Format, call_annotate_function, get_annotate_from_class_namespace

    def annotations_of(function: Any) -> dict[str, Any]:
        """The annotations of a function or a class."""
        try:
            return inspect.get_annotations(function)
        except NameError:
            return inspect.get_annotations(function, format=Format.STRING)

    def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
        """The parameters of a function by name, in their order."""
        return inspect.signature(function, annotation_format=Format.STRING).parameters

    def read_annotations(body: dict[str, Any]) -> dict[str, Any]:
        """The annotations of a class body, which are put into it under ``__annotations__``."""
        evaluate = get_annotate_from_class_namespace(body)
        if evaluate is not None:
            body.pop("__annotate_func__", None)
            body.pop("__annotate__", None)
            try:
                body["__annotations__"] = call_annotate_function(evaluate, Format.VALUE)
            except NameError:
                body["__annotations__"] = call_annotate_function(evaluate, Format.STRING)
        found: dict[str, Any] = body.setdefault("__annotations__", {})
        return found

else:

    def annotations_of(function: Any) -> dict[str, Any]:
        """The annotations of a function or a class."""
        return inspect.get_annotations(function)

    def parameters_of(function: Any) -> Mapping[str, inspect.Parameter]:
        """The parameters of a function by name, in their order."""
        return inspect.signature(function).parameters

    def read_annotations(body: dict[str, Any]) -> dict[str, Any]:
        """The annotations of a class body, which are put into it under ``__annotations__``."""
        found: dict[str, Any] = body.setdefault("__annotations__", {})
        return found


class _Annotated:
    def __init__(self, annotation: Any) -> None:
        self.__annotations__ = {"it": annotation}


class Scope:
    """The names that are visible where a class or a function is defined."""

    __slots__ = ("_globals", "_locals")

    def __init__(self, globals_: dict[str, Any], locals_: dict[str, Any]) -> None:
        self._globals = globals_
        self._locals = locals_

    @classmethod
    def of_caller(cls, depth: int) -> Scope:
        """The scope of the code that is ``depth`` calls above the caller of this method."""
        frame = inspect.currentframe()
        for _ in range(depth + 1):
            frame = None if frame is None else frame.f_back
        if frame is None:
            return cls({}, {})
        globals_ = frame.f_globals
        seen: dict[str, Any] = {}
        while frame is not None and frame.f_locals is not globals_:
            seen = {**frame.f_locals, **seen}
            if frame.f_code.co_flags & inspect.CO_OPTIMIZED:
                break  # a function: its callers are outside of the scope of the class
            frame = frame.f_back
        return cls(globals_, seen)

    def for_function(self, function: Any, owner: Mapping[str, Any]) -> Scope:
        """The scope of a function's annotations: module, these locals, classes defined in its class."""
        nested = {name: value for name, value in owner.items() if isinstance(value, type)}
        return Scope(function.__globals__, {**nested, **self._locals})

    def resolve(self, annotation: Any) -> Any:
        """The type that an annotation means. Raises UnresolvedName for a name that is not known."""
        if isinstance(annotation, type) and not get_args(annotation):
            return annotation
        try:
            return get_type_hints(_Annotated(annotation), self._globals, self._locals, include_extras=True)[
                "it"
            ]
        except NameError as error:
            raise UnresolvedName(str(error)) from None

    def knows(self, annotations: Iterable[Any]) -> bool:
        """Whether the names in all annotations are known. What is not a type is left to ``resolve_now``."""
        try:
            for annotation in annotations:
                self.resolve(annotation)
        except UnresolvedName:
            return False
        except (TypeError, SyntaxError, AttributeError):
            pass
        return True

    def resolve_now(self, annotation: Any, where: str) -> Any:
        """Like ``resolve``, but raises DefinitionError about ``where`` for an unknown name or a non-type."""
        try:
            return self.resolve(annotation)
        except UnresolvedName as error:
            raise DefinitionError(
                f"{where}: the annotation {annotation!r} cannot be looked up: {error}", hint=_RUN_TIME_HINT
            ) from None
        except (TypeError, SyntaxError, AttributeError) as error:
            raise DefinitionError(
                f"{where}: the annotation {annotation!r} is not a type: {error}",
                hint="Annotate it with a type.",
            ) from None

    def head(self, annotation: Any) -> Any:
        """The part of an annotation before its brackets, or None if it is not known."""
        if not isinstance(annotation, str):
            return get_origin(annotation) or annotation
        first, *rest = annotation.partition("[")[0].strip("'\" ").split(".")
        found = self._locals.get(first, self._globals.get(first))
        for name in rest:
            found = getattr(found, name, None)
        return found


def members_of(annotation: Any) -> tuple[Any, ...]:
    """The alternatives of a union, or the type itself."""
    if get_origin(annotation) in (Union, types.UnionType):
        return tuple(member for part in get_args(annotation) for member in members_of(part))
    return (annotation,)


def accepts(annotation: Any, offered: Any) -> bool:
    """Whether a parameter with this annotation accepts every value of the type ``offered``, as far as that is known (Any)."""
    allowed = members_of(annotation)
    if any(a is Any or a is object or isinstance(a, TypeVar) for a in allowed):
        return True
    return all(any(_takes(a, member) for a in allowed) for member in members_of(offered))


def _takes(allowed: Any, member: Any) -> bool:
    if allowed == member or member is Any or (allowed is float and member is int):
        return True
    if isinstance(allowed, type) and isinstance(member, type) and not get_args(allowed):
        return issubclass(member, allowed)
    origin = get_origin(allowed)
    if origin is None or origin is not (get_origin(member) or member):
        return False
    # The parameters of a bare generic class are not known at run time.
    pairs = zip(get_args(allowed), get_args(member), strict=False)
    return all(accepts(wanted, given) for wanted, given in pairs)
