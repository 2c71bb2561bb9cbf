"""The table of ``delays`` as one query in SQL, by Spark, over the same topic: a line of JSON for each airport and hour.

python -m services.flights.delays_sql LOG
"""

from __future__ import annotations

import sys

import msgspec

from tailrace.spark import session

QUERY = """
SELECT airport, start, avg(delay_minutes) AS mean_delay, count(*) AS departures
FROM (SELECT airport, delay_minutes, scheduled_ms - scheduled_ms % 3600000 AS start FROM movements)
GROUP BY airport, start
"""


class Row(msgspec.Struct, frozen=True):
    """A row of the table."""

    airport: str
    start: int
    mean_delay: float
    departures: int


def main(log: str) -> int:
    """Run the query, and print its rows."""
    spark = session()
    movements = spark.read.format("tailrace").options(
        log=log, app="services.flights.delays:app", topic="movements"
    )
    movements.load().createOrReplaceTempView("movements")
    for row in spark.sql(QUERY).collect():  # pyright: ignore[reportUnknownMemberType]  # PySpark leaves its arguments untyped
        sys.stdout.buffer.write(msgspec.json.encode(Row(**row.asDict())) + b"\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
