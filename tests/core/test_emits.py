"""Messages, the search for names itself, and ``emits=`` with the check at each emit. The rules of names:
test_references.py.
"""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any

import pytest

import tailrace as tr
from tailrace.graph import graph_of
from tailrace.testing import Harness
from tests.core.referring import Event, Other, Ping, Receiver, a, found_in


def sends(event: Any, ctx: Any) -> None:
    ctx.send(Receiver, "k", Ping())


def sends_to_itself(self: Any, event: Any, ctx: Any) -> None:
    ctx.send(type(self), "k", Ping())


def only_names(event: Any, ctx: Any) -> None:
    if isinstance(event, Receiver):
        ctx.emit(a, event)


def test_an_actor_is_a_target_if_the_code_names_it_and_sends() -> None:
    assert found_in(sends).actors == {Receiver}
    assert found_in(sends_to_itself, cls=Other).actors == {Other}
    assert found_in(only_names).actors == set()


def test_the_methods_of_other_actors_are_not_those_of_the_handler() -> None:
    def handler(self: Any, event: Any, ctx: Any) -> None:
        ctx.send(Receiver, "k", Ping())
        self.ping(event, ctx)
        event.report(ctx)

    assert found_in(handler, cls=Other).edges == set()


# --- the search itself ---


def test_code_of_the_objects_is_not_run() -> None:
    def refuse(*_: object) -> Any:
        raise RuntimeError("code was run")

    names = ("getattribute", "call", "eq", "hash", "bool", "iter", "len", "getitem")
    proxy: Any = type("Proxy", (), {f"__{name}__": refuse for name in names})()
    table: dict[str, Any] = {"proxy": proxy, "a": a}

    def handler(event: Any, ctx: Any) -> None:
        proxy.read(event, [one.key for one in table.values()])
        ctx.emit(table[event.kind], event)

    assert found_in(handler).edges == {a}


def test_long_chains_of_calls_are_followed_to_their_end() -> None:
    names: dict[str, Any] = {"a": a, "__name__": __name__}
    for number in range(1_500):
        exec(f"def f{number}(ctx): f{number + 1}(ctx)", names)
    exec("def f1500(ctx): ctx.emit(a, None)", names)
    assert found_in(names["f0"]).edges == {a}


@pytest.mark.parametrize(("folder", "edges"), [("src", {a}), ("site-packages", set[Any]())])
def test_modules_in_one_folder_are_one_app_but_not_where_packages_are_installed(
    folder: str, edges: set[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    helping, main = f"helping_{len(folder)}", f"main_{len(folder)}"
    for name, source in (
        (helping, "def tell(ctx): ctx.emit(a, None)"),
        (main, f"import {helping}\ndef handler(event, ctx): {helping}.tell(ctx)"),
    ):
        module: Any = ModuleType(name)
        module.__file__, module.a = f"/home/{folder}/{name}.py", a
        monkeypatch.setitem(sys.modules, name, module)
        exec(source, vars(module))
    assert found_in(sys.modules[main].handler).edges == edges


# --- emits= and the check ---


def routing(emits: list[str] | None = None) -> tuple[tr.App, Any]:
    """An app that chooses a topic by the event: one that is taken, one that is not, or one that its code does
    not name.
    """
    shop = tr.App("shop", partitions=1)
    topics = {
        name: shop.topic(name, Event, key="key", key_type=str) for name in ("orders", "sales", "unnamed")
    }
    orders, sales = topics["orders"], topics["sales"]

    @shop.process(orders, emits=None if emits is None else [topics[name] for name in emits])
    def route(event: Event, ctx: tr.Context[str]) -> None:
        to: Any = (
            shop.topics[event.kind] if event.kind == "unnamed" else {"o": orders, "s": sales}[event.kind]
        )
        ctx.emit(to, event)

    return shop, orders


def test_an_emit_that_was_not_found_is_refused_with_the_fix() -> None:
    shop, orders = routing()
    with (
        Harness(shop) as h,
        pytest.raises(
            tr.HandlerError, match=r"not found in .*@app\.process\(emits=\[.*'unnamed', 'orders', 'sales'\."
        ),
    ):
        h.send(orders, Event("k", "unnamed"))
    shop, orders = routing(["unnamed"])
    with Harness(shop) as h:
        h.send(orders, Event("k", "unnamed"))


def test_emits_replaces_the_targets_that_were_found() -> None:
    assert routing()[0].plan().circles == (("route",),)
    shop, orders = routing(["sales"])
    assert shop.plan().circles == ()
    with Harness(shop) as h, pytest.raises(tr.HandlerError, match="'orders', which was not found"):
        h.send(orders, Event("k", "o"))


def test_the_graph_has_the_targets_of_emits_and_no_others() -> None:
    edges = graph_of([routing(["sales", "unnamed"])[0].plan()]).edges
    assert {(one.target, one.handlers) for one in edges if one.kind == "emits"} == {
        ("topic:sales", ("route",)),
        ("topic:unnamed", ()),
    }
