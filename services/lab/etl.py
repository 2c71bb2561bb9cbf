"""Extract, transform, load: finished legs from an export to Parquet files in a folder for each day and airport.

python -m services.lab.etl EXPORT FOLDER
"""

from __future__ import annotations

import sys

import duckdb

LEGS = """
    select
        tail, carrier, flight, origin, destination, seats,
        make_timestamp(departed_ms * 1000) as departed,
        make_timestamp(arrived_ms * 1000) as arrived,
        departure_delay_minutes as departure_delay,
        arrival_delay_minutes as arrival_delay,
        strftime(departed, '%Y-%m-%d') as day
    from read_parquet($export || '/legs-finished/*.parquet')
    where not diverted
    order by day, origin, departed, tail
"""
FILES = "format parquet, compression zstd, partition_by (day, origin), overwrite"


def main(export: str, folder: str) -> int:
    """Write the legs in place of those that are in the folder, and print how many there are."""
    with duckdb.connect() as db:
        copied = db.execute(f"copy ({LEGS}) to '{folder}' ({FILES})", {"export": export}).fetchone()
    assert copied
    print(f"{copied[0]:,} legs in {folder}")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
