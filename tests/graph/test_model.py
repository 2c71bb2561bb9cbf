"""The graph of an app: what is declared, what the code shows, and how it is drawn."""

from __future__ import annotations

import re

import msgspec

import tailrace as tr
from tailrace.graph import Edge, Graph, Node, as_mermaid, as_text, graph_of
from tests.core.ordered import Event, joining
from tests.graph.market import app, ledger
from tests.tables.stock import reader, writer


def edges(*apps):
    return {(edge.source, edge.kind, edge.target) for edge in graph_of(one.plan() for one in apps).edges}


def test_every_kind_of_edge_is_found() -> None:
    inner, inbox, dead = (
        "topic:market.orders.by-key",
        "inbox:market.inbox",
        "dead-letters:market.dead-letters",
    )
    customer, board, price = "actor:market:Customer", "actor:market:Board", "function:market:price"
    assert edges(app) == {
        ("topic:orders", "forwards", inner),
        (inner, "takes", price),
        (inner, "late", "topic:late-orders"),
        (price, "emits", "stream:market:prices"),
        ("stream:market:prices", "takes", customer),
        (customer, "emits", "topic:bills"),
        (customer, "emits", "topic:audit"),
        ("topic:bills", "takes", customer),
        (customer, "sends", inbox),
        (inbox, "takes", board),
        ("topic:orders", "dead-letters", dead),
        (inner, "dead-letters", dead),
        ("topic:bills", "dead-letters", dead),
    }


def test_apps_are_chained_by_the_topics_that_they_share() -> None:
    both = edges(app, ledger)
    assert edges(app) | edges(ledger) == both
    assert ("topic:audit", "takes", "actor:ledger:Account") in both
    graph = graph_of([app.plan(), ledger.plan()])
    (audit,) = [node for node in graph.nodes if node.name == "audit"]
    assert audit.apps == ("market", "ledger")
    assert audit.about == ("time of arrival",)


def test_edges_name_the_handlers_they_stand_for() -> None:
    graph = graph_of([app.plan()])
    found = {(edge.kind, edge.handlers) for edge in graph.edges if edge.source == "actor:market:Customer"}
    assert found == {("emits", ("Customer.priced",)), ("sends", ("Customer.priced",))}


def test_nodes_say_partitions_types_keys_and_times() -> None:
    nodes = {node.name: node for node in graph_of([app.plan()]).nodes}
    wanted = (3, "Priced", "customer: str")
    assert (nodes["bills"].partitions, nodes["bills"].type, nodes["bills"].key) == wanted
    assert nodes["orders"].about == ("time at", "out of order by 90s")
    assert nodes["market.orders.by-key"].about == ("time at", "follows its writers", "late ones routed")
    assert nodes["Customer"].about == ("key str", "timer closing", "query sum")
    assert {node.kind for node in nodes.values()} == {
        "topic", "stream", "actor", "function", "inbox", "dead-letters",
    }  # fmt: skip


def test_what_comes_from_its_taker_is_feedback_and_other_inner_topics_follow_their_writers() -> None:
    graph = graph_of([app.plan()])
    found = [edge for edge in graph.edges if edge.feedback]
    assert [(edge.source, edge.kind, edge.target) for edge in found] == [
        ("topic:bills", "takes", "actor:market:Customer")
    ]
    (bills,) = [node for node in graph.nodes if node.name == "bills"]
    assert bills.about == ("time of the record", "feedback alone")
    assert "    ◄── feedback: bills (billed)" in as_text(graph)
    assert "    ──► feedback: Customer (billed)" in as_text(graph)


def test_the_graph_reads_back_from_its_json() -> None:
    graph = graph_of([app.plan(), ledger.plan()])
    assert msgspec.json.decode(graph.as_json(), type=Graph) == graph


def test_the_text_names_every_node_and_both_ends_of_every_edge() -> None:
    graph = graph_of([app.plan()])
    text = as_text(graph)
    assert all(f"{node.kind} {node.name}" in text for node in graph.nodes)
    assert text.count("──►") == text.count("◄──") == len(graph.edges)
    assert "    ──► sends: market.inbox (priced)" in text
    assert "app market: version 1, 3 partitions, what fails goes to the dead letters" in text


def test_an_app_without_anything_has_a_graph() -> None:
    graph = graph_of([tr.App("empty").plan()])
    assert (graph.nodes, graph.edges) == ((), ())


def test_actors_and_functions_say_that_they_handle_events_in_event_time_order() -> None:
    app = joining()

    @app.process(app.topics["left"], app.topics["right"], order="event-time")
    def both(event: Event, ctx: tr.Context[str]) -> None: ...

    nodes = {node.name: node for node in graph_of([app.plan()]).nodes}
    assert nodes["Join"].about[-1] == "events in event-time order"
    assert nodes["both"].about == ("events in event-time order",)


def test_a_table_is_a_node_of_its_own_kind_whether_it_is_read_or_written() -> None:
    graph = graph_of([writer.plan(), reader.plan()])
    (table,) = [node for node in graph.nodes if node.kind == "table"]
    assert (table.id, table.apps, table.key) == ("topic:stocks", ("writer", "reader"), "item: str")
    text = as_text(graph)
    assert "table stocks of Stock [writer, reader]: 2 partitions, key item: str" in text
    assert "    ──► Copy (gone, set)" in text
    assert '{{"stocks (writer, reader)"}}' in as_mermaid(graph)


# --- as a drawing


def test_mermaid_has_every_node_and_every_edge() -> None:
    market = graph_of([app.plan(), ledger.plan()])
    first, *lines = as_mermaid(market).splitlines()
    assert first == "flowchart LR"
    nodes = [line for line in lines if re.match(r"    n\d+[\[(]", line)]
    edges = [line for line in lines if re.match(r"    n\d+ -", line)]
    assert len(nodes) == len(market.nodes)
    assert len(edges) == len(market.edges)
    assert len(nodes) + len(edges) == len(lines)


def test_names_are_escaped() -> None:
    nodes = (Node('topic "a"', "topic", 'x"<\\', ("one",)), Node("b", "actor", "B", ("one",)))
    drawn = Graph((), nodes, (Edge('topic "a"', "b", "late"),))
    assert 'n0[("x&quot;&lt;\\")]' in as_mermaid(drawn)
    assert 'n0 -.->|"late"| n1' in as_mermaid(drawn)
