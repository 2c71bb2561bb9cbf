"""The analysis handles any code, on every Python version, and terminates."""

from __future__ import annotations

import argparse
import ast
import contextlib
import copy
import dataclasses
import inspect
import json.decoder
import logging
import textwrap
import typing
from types import FunctionType, ModuleType
from typing import Any

import pytest

from tailrace.core.declare.analysis import bytecode, flow
from tests.core.emitting import a, read

MODULES = [argparse, ast, contextlib, copy, dataclasses, inspect, json.decoder, logging, textwrap, typing]


def functions_of(module: ModuleType) -> list[Any]:
    owners = [module, *(one for one in vars(module).values() if isinstance(one, type))]
    found = [one for owner in owners for one in vars(owner).values() if isinstance(one, FunctionType)]
    return [one for one in found if one.__module__ == module.__name__]


@pytest.mark.parametrize("module", MODULES, ids=lambda module: module.__name__)
def test_all_ways_to_an_instruction_find_the_stack_as_deep(
    module: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    depths: list[tuple[int, int]] = []

    def joined(known: Any, more: Any) -> Any:
        if known is not None and more is not None:
            depths.append((len(known), len(more)))
        return plain(known, more)

    plain = bytecode._joined
    monkeypatch.setattr(bytecode, "_joined", joined)
    monkeypatch.setattr(flow, "MOST_WORK", 3000)
    functions = functions_of(module)
    for function in functions:
        read(function)
    assert functions
    assert [pair for pair in depths if pair[0] != pair[1]] == []


def test_the_analysis_stops_at_its_limit_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def handler(event: Any, ctx: Any) -> None:
        ctx.emit(a, event)
        for _ in range(event.count):
            event.other(ctx.key)
            event.third(ctx.key)

    assert read(handler).hidden == ()
    monkeypatch.setattr(flow, "MOST_WORK", 20)
    line = handler.__code__.co_firstlineno
    assert read(handler).hidden == (f"handler, line {line}: it calls more code than is read",)


def test_a_function_that_calls_itself_with_more_each_time_is_read_to_its_end() -> None:
    def handler(event: Any, ctx: Any, held: Any = ()) -> None:
        held = [held, handler, {"held": held}, lambda: held]
        handler(event, ctx, held)
        getattr(getattr(held, event.name), event.name)(held)
        ctx.emit(a, event)

    assert read(handler).edges == {a}


def test_code_of_a_user_is_not_run() -> None:
    class Proxy:
        """As those of some libraries, which are somebody else's until they are used."""

        def __getattribute__(self, name: str) -> Any:
            raise RuntimeError(f"{name} was looked up")

        def __call__(self, *_: Any) -> Any:
            raise RuntimeError("it was called")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("it was compared")

        def __hash__(self) -> int:
            raise RuntimeError("it was hashed")

        def __bool__(self) -> bool:
            raise RuntimeError("it was asked")

        def __iter__(self) -> Any:
            raise RuntimeError("it was iterated")

        __len__ = __getitem__ = __contains__ = __iter__

    proxy = Proxy()
    table: dict[str, Any] = {"proxy": proxy, "a": a}

    def handler(event: Any, ctx: Any, more: Any = proxy) -> None:
        proxy.read(event)
        proxy(event)
        more[event.key] = [one.key for one in proxy]
        for one in (proxy, *table.values()):
            one.key(proxy)
        if proxy == event or table["proxy"]:
            ctx.emit(table[event.kind], event)

    assert read(handler).edges == {a}
