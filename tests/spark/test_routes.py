"""PageRank and label propagation of ``services/lab`` on drawn graphs, against networkx."""

from __future__ import annotations

from random import Random

import networkx as nx
import numpy as np
import pytest
from pyspark.sql import DataFrame, SparkSession

from services.lab.routes import communities, page_rank

Routes = list[tuple[str, str, int]]
ROUNDS = 12
HUBS = [f"hub{number}" for number in range(4)]


def table(spark: SparkSession, routes: Routes) -> DataFrame:
    return spark.createDataFrame(routes, "src string, dst string, flights long")


def test_ranks_are_those_of_networkx_also_with_airports_where_flights_end(spark: SparkSession) -> None:
    random = Random(1)
    pairs = {(f"a{random.randrange(9)}", f"a{random.randrange(12)}") for _ in range(30)}
    routes = [(src, dst, random.randrange(1, 50)) for src, dst in sorted(pairs) if src != dst]
    graph = nx.DiGraph()
    graph.add_weighted_edges_from(routes)
    assert any(not graph.out_degree(one) for one in graph)
    matrix = np.linalg.matrix_power(nx.google_matrix(graph, alpha=0.85), ROUNDS)
    expected = dict(zip(graph, np.full(len(graph), 1 / len(graph)) @ matrix, strict=True))
    ranks = {row.airport: row["rank"] for row in page_rank(table(spark, routes), ROUNDS).collect()}
    assert ranks == pytest.approx(expected, abs=1e-12)


def test_planted_communities_are_found_as_by_networkx(spark: SparkSession) -> None:
    random = Random(3)
    routes: Routes = []
    for number in range(24):
        home, away = random.sample(HUBS, 2)
        routes += [
            (home, f"a{number:02}", random.randrange(20, 40)),
            (f"a{number:02}", away, random.randrange(1, 10)),
        ]
    graph = nx.Graph()
    graph.add_weighted_edges_from(routes)
    grouped: dict[str, set[str]] = {}
    for row in communities(table(spark, routes), HUBS, turns=6).collect():
        grouped.setdefault(row.label, set()).add(row.airport)
    found = {frozenset(one) for one in grouped.values()}
    by_networkx = nx.community.fast_label_propagation_communities(graph, weight="weight", seed=1)
    assert found == {frozenset(one) for one in by_networkx}
    assert len(found) == len(HUBS)
