"""Routes as a graph, by Spark: which airports matter most (PageRank), and to which of New York's airports the others belong.

python -m services.lab.routes LEGS FOLDER
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812 - as every page on Spark has it

from tailrace.spark import session

NEW_YORK = "EWR", "JFK", "LGA"
DAMPING = 0.85
ROUNDS = 40
"""After them, a rank is off by less than 0.85 to the power of 40: 0.0015."""


def routes_of(legs: DataFrame) -> DataFrame:
    """The number of flights from each airport to each other one (``src``, ``dst``, ``flights``).

    The legs all begin in New York. An aircraft whose next leg begins there, too, has flown back in between.
    """
    there = legs.selectExpr("origin as src", "destination as dst")
    next_leg = "lead(origin) over (partition by tail order by departed)"
    back = legs.selectExpr("destination as src", f"{next_leg} as dst").where("dst is not null")
    return there.union(back).where("src <> dst").groupBy("src", "dst").agg(F.count("*").alias("flights"))


def page_rank(routes: DataFrame, rounds: int = ROUNDS) -> DataFrame:
    """The share of passengers at each airport (``airport``, ``rank``), if each takes one flight after another at random.

    With probability 0.15, and at an airport without flights, a passenger continues at any airport instead.
    """
    names = airports_of(routes)
    count = names.count()
    moves = routes.selectExpr("src", "dst", "flights / sum(flights) over (partition by src) as share")
    ends = names.selectExpr("airport as src").join(routes, "src", "left_anti")
    anywhere = ends.crossJoin(names.selectExpr("airport as dst", f"1 / {count} as share"))
    staying = names.selectExpr("airport as src", "airport as dst", "0.0D as share")  # each airport has a row
    moves = moves.union(anywhere).union(staying).coalesce(1).localCheckpoint()
    ranks = names.selectExpr("airport", f"1 / {count} as rank")
    for _ in range(rounds):
        rank = DAMPING * F.sum(F.col("rank") * F.col("share")) + (1 - DAMPING) / count
        arriving = moves.join(F.broadcast(ranks), moves.src == ranks.airport).groupBy("dst")
        ranks = arriving.agg(rank.alias("rank")).withColumnRenamed("dst", "airport").localCheckpoint()
    return ranks


def communities(routes: DataFrame, hubs: Sequence[str] = NEW_YORK, turns: int = 10) -> DataFrame:
    """Label propagation (``airport``, ``label``): again and again, each airport takes the label with which it has most flights.

    Hubs and other airports take turns. At once, they would exchange their labels without end.
    """
    links = routes.union(routes.selectExpr("dst", "src", "flights")).coalesce(1).localCheckpoint()
    labels = airports_of(routes).selectExpr("airport", "airport as label")
    for turn in range(turns):
        flights = links.join(F.broadcast(labels), links.dst == labels.airport).groupBy("src", "label")
        most = flights.agg(F.sum("flights").alias("n")).groupBy("src")
        taken = most.agg(F.expr("max_by(label, struct(n, label))").alias("taken"))
        on_turn = F.col("src").isin(*hubs) == F.lit(turn % 2 == 1)
        label = F.when(on_turn, F.col("taken")).otherwise(F.col("label")).alias("label")
        labels = taken.join(labels, taken.src == labels.airport).select("airport", label).localCheckpoint()
    return labels


def airports_of(routes: DataFrame) -> DataFrame:
    """All airports of the routes, once each."""
    return routes.select(F.explode(F.array("src", "dst")).alias("airport")).distinct()


def main(legs: str, folder: str) -> int:
    """Write the rank and the community of each airport, and print the first ones and the sizes."""
    routes = routes_of(session().read.parquet(legs)).localCheckpoint()
    airports = page_rank(routes).join(communities(routes), "airport").localCheckpoint()
    airports.write.parquet(folder)
    for row in airports.orderBy(F.desc("rank")).limit(6).collect():
        print(f"{row.airport}  {row.rank:.3f}  {row.label}")
    for row in airports.groupBy("label").agg(F.count("*").alias("number")).orderBy("label").collect():
        print(f"{row.number} airports with {row.label}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
