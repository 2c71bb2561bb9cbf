"""The demo of the flights (``make demo``), and the small examples. The exit code is 1 if any result is wrong."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from datetime import date
from pathlib import Path

from services.demo import examples, flights


def main(arguments: Sequence[str]) -> int:
    """Run the demo of the flights, or the named examples. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m services.demo", description=__doc__)
    shows = parser.add_subparsers(dest="show", metavar="flights | examples")
    year = shows.add_parser("flights", help="three months of flights through two services; it takes a minute")
    year.add_argument("--since", type=date.fromisoformat, default=date(2013, 1, 1), help="the first day")
    year.add_argument(
        "--until", type=date.fromisoformat, default=date(2013, 4, 1), help="the day after the last"
    )
    year.add_argument("--year", action="store_true", help="all of 2013, instead of these days")
    year.add_argument("--out", type=Path, default=Path("out"), help="where log, state and picture go")
    year.add_argument("--commit-interval", default="300ms", metavar="TIME", help="of both services")
    year.add_argument(
        "--log",
        default="",
        metavar="kafka://HOST:PORT",
        help="run on this Kafka broker, under names of their own (default: a log on disk)",
    )
    small = shows.add_parser(
        "examples", help="the small examples: what goes in, what comes out, a crash, a replay"
    )
    small.add_argument("names", nargs="*", metavar="name", help="only these")
    given = parser.parse_args(arguments or ["flights"])
    if given.show == "examples":
        return examples.main(given.names)
    days = flights.YEAR if given.year else (given.since, given.until)
    return flights.main(flights.Settings(days[0], days[1], given.out, given.commit_interval, given.log))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
