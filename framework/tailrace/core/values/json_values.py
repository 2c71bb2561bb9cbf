"""Values as JSON, for output: floats that JSON cannot represent are the texts "NaN", "Infinity", "-Infinity"."""

from __future__ import annotations

from collections.abc import Callable
from math import isfinite, isnan
from typing import Any

import msgspec


def as_json_value(value: Any, enc_hook: Callable[[Any], Any] | None = None) -> Any:
    """A value that JSON can represent. ``enc_hook`` converts types that msgspec does not know.
    Raises TypeError: it has another such type, or two keys that are one in JSON.
    """
    return _shown(msgspec.to_builtins(value, enc_hook=enc_hook))


def key_text(key: Any) -> str:
    """The key of a map as JSON has it: its text, or its JSON: ``["JFK",3]``."""
    shown = as_json_value(key)
    return shown if isinstance(shown, str) else msgspec.json.encode(shown).decode()


def _shown(value: Any) -> Any:
    if isinstance(value, float):
        return (
            value if isfinite(value) else "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
        )
    if isinstance(value, dict):
        given: dict[Any, Any] = value  # pyright: ignore[reportUnknownVariableType]  # any JSON
        shown = {key if isinstance(key, str) else key_text(key): _shown(one) for key, one in given.items()}
        if len(shown) != len(given):
            raise TypeError("two keys of a map are the same text, such as 1 and '1'")
        return shown
    if isinstance(value, (list, tuple)):
        return [_shown(one) for one in value]  # pyright: ignore[reportUnknownVariableType]  # any JSON
    return value
