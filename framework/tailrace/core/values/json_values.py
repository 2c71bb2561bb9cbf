"""Values as JSON, for output: floats that JSON cannot represent are the texts "NaN", "Infinity", "-Infinity"."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, isnan
from typing import Any, cast

import msgspec

from tailrace.core.values.event_values import not_finite


def as_json_value(value: Any, enc_hook: Callable[[Any], Any] | None = None) -> Any:
    """A value that JSON can represent. ``enc_hook`` converts types that msgspec does not know.
    Raises TypeError: it has another such type, keys that JSON cannot represent, or two keys that are one in JSON.
    """
    shown = msgspec.to_builtins(value, str_keys=True, enc_hook=enc_hook)
    if _size(shown) != _size(msgspec.to_builtins(value, enc_hook=enc_hook)):
        raise TypeError("two keys of a map are the same text, such as 1 and '1'")
    return shown if not_finite(shown) is None else _with_names(shown)


def _size(value: Any) -> int:
    """The number of values in a value."""
    kind: Any = value.__class__
    if kind is dict:
        return sum(map(_size, value.values()), len(value))
    return sum(map(_size, value)) if kind in (list, tuple) else 0


def _with_names(shown: Any) -> Any:
    if isinstance(shown, float):
        return (
            shown if isfinite(shown) else "NaN" if isnan(shown) else "Infinity" if shown > 0 else "-Infinity"
        )
    if isinstance(shown, dict):
        return {name: _with_names(one) for name, one in cast("dict[str, Any]", shown).items()}
    if isinstance(shown, (list, tuple)):
        return [_with_names(one) for one in shown]  # pyright: ignore[reportUnknownVariableType]  # any JSON
    return shown
