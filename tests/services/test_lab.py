"""The guide to analysis, as its reader runs it, and each of its results against plain Python over the history, networkx or Spark."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections import defaultdict
from collections.abc import Mapping
from datetime import UTC, date, datetime
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import duckdb
import msgspec
import networkx as nx
import numpy as np
import pytest

from schemas.flights import HOUR_MS, MINUTE_MS, Airframe, Arrival, Departure, Weather
from services.flights.history import Event, facts
from services.lab import forecast
from services.lab.model import Model, digest_of, pinned, write
from services.lab.routes import DAMPING, ROUNDS
from tests.docs.page import ROOT, environment, play

pytestmark = pytest.mark.long

Row = tuple[Any, ...]


class Leg(NamedTuple):
    departure: Departure
    arrival: Arrival

    @property
    def delay(self) -> int:
        return (self.arrival.arrived_ms - self.departure.scheduled_arrival_ms) // MINUTE_MS

    @property
    def caught_up(self) -> int:
        return self.departure.delay_minutes - self.delay


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with copies of `services` and `schemas`, in which all commands of the guide were run."""
    folder = tmp_path_factory.mktemp("clone")
    for name in ("services", "schemas"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    assert play((ROOT / "docs" / "analysis.md").read_text("utf-8"), folder) >= 6
    return folder


@pytest.fixture(scope="module")
def history() -> list[Event]:
    return [event for _, event in facts(date(2013, 2, 5), date(2013, 2, 12))]


@pytest.fixture(scope="module")
def legs(history: list[Event]) -> list[Leg]:
    """All that have arrived, in the order of their departures."""
    arrivals = {(one.tail, one.leg): one for one in history if isinstance(one, Arrival)}
    departures = [one for one in history if isinstance(one, Departure)]
    found = [Leg(one, arrivals[one.tail, one.leg]) for one in departures if (one.tail, one.leg) in arrivals]
    return sorted(found, key=lambda leg: (leg.departure.departed_ms, leg.departure.tail))


def read(folder: Path, what: str, columns: str) -> list[Row]:
    with duckdb.connect() as db:
        db.execute("set timezone = 'UTC'")
        return db.execute(f"select {columns} from '{folder}/data/{what}'").fetchall()


def instant(at_ms: int) -> datetime:
    return datetime.fromtimestamp(at_ms / 1_000, UTC).replace(tzinfo=None)


# --- SQL


def the_hours_of_the_query_are_those_of_the_history(played: Path, history: list[Event]) -> None:
    query = (ROOT / "services/lab/hours.sql").read_text("utf-8")
    command = [sys.executable, "-m", "tailrace", "sql", "--json", "services.flights.airport:app", "--", query]
    done = subprocess.run(command, capture_output=True, check=True, cwd=played, env=environment())
    found = {(row.pop("airport"), row.pop("hour")): row for row in map(json.loads, done.stdout.splitlines())}
    weather = {(one.airport, one.hour_ms): one for one in history if isinstance(one, Weather)}
    delays: dict[tuple[str, int], list[int]] = defaultdict(list)
    for one in history:
        if isinstance(one, Departure):
            delays[one.origin, one.scheduled_ms // HOUR_MS * HOUR_MS].append(one.delay_minutes)
    expected = {
        (place[0], instant(place[1]).isoformat()): {
            "departures": len(delays[place]),
            "mean_delay": pytest.approx(fmean(delays[place]), abs=0.051),
            "visibility": weather[place].visibility_miles,
            "wind": round(weather[place].wind_mph or 0.0),
            "rain": weather[place].precipitation_in,
        }
        for place in delays
        if len(delays[place]) >= 10
    }
    of_last_days = {place for place in expected if place[1] >= "2013-02-10"}
    assert len(of_last_days) > 80
    assert of_last_days <= found.keys()
    assert found == {place: expected[place] for place in found}


# --- tables


def the_partitions_have_each_leg_once_in_the_folder_of_its_day_and_airport(
    played: Path, history: list[Event], legs: list[Leg]
) -> None:
    seats = {one.tail: one.seats for one in history if isinstance(one, Airframe)}
    expected = [
        (
            leg.departure.tail,
            leg.departure.flight,
            leg.departure.destination,
            seats.get(leg.departure.tail),
            instant(leg.departure.departed_ms),
            instant(leg.arrival.arrived_ms),
            leg.departure.delay_minutes,
            leg.delay,
            f"day={instant(leg.departure.departed_ms).date()}/origin={leg.departure.origin}",
        )
        for leg in legs
        if not leg.arrival.diverted
    ]
    columns = "tail, flight, destination, seats, departed, arrived, departure_delay, arrival_delay"
    place = "regexp_extract(filename, 'day=[^/]*/origin=[^/]*')"
    found = read(played, "legs/*/*/*.parquet", f"{columns}, {place}")
    assert sorted(found, key=repr) == sorted(expected, key=repr)


# --- the model


def features(legs: list[Leg]) -> Mapping[tuple[str, int, int], Row]:
    """What was known about the aircraft before each departure: by its tail, the departure's time and its flight."""
    by_tail: dict[str, list[Leg]] = defaultdict(list)
    for leg in legs:
        by_tail[leg.departure.tail].append(leg)
    found: dict[tuple[str, int, int], Row] = {}
    for leg in legs:
        at_ms = leg.departure.departed_ms
        past = [one for one in by_tail[leg.departure.tail] if one.arrival.arrived_ms < at_ms]
        last = max(past, key=lambda one: one.arrival.arrived_ms, default=None)
        duration = (leg.departure.scheduled_arrival_ms - leg.departure.scheduled_ms) // MINUTE_MS
        of_last = (0, 0) if last is None else (last.delay, last.caught_up)
        if not leg.arrival.diverted:
            found[leg.departure.tail, at_ms, leg.departure.flight] = (
                leg.departure.delay_minutes, duration, *of_last, len(past), leg.delay,
            )  # fmt: skip
    return found


KEY = "key, epoch_ms(time) + 1, flight"


def the_rows_for_training_have_what_was_known_before_each_departure(played: Path, legs: list[Leg]) -> None:
    columns = ("departure_delay", "duration", "last_delay", "caught_up", "legs", "arrival_delay")
    rows = read(
        played, "rows/Aircraft/*.parquet", ", ".join([KEY, *(f"coalesce({one}, 0)" for one in columns)])
    )
    assert len(rows) == 5_089
    assert {row[:3]: row[3:] for row in rows} == features(legs)


def the_model_predicts_in_python_and_in_the_live_actor_what_it_predicts_in_spark(played: Path) -> None:
    trained = msgspec.json.decode((played / "data/arrival-delay-1.json").read_bytes(), type=Model)
    in_spark = read(played, "predictions/*.parquet", f"{KEY}, prediction, {', '.join(trained.features)}")
    live = {
        row[:3]: row[3:]
        for row in read(
            played, "forecasts/forecasts/*.parquet", "tail, departed_ms, flight, arrival_delay, model"
        )
    }
    assert len(in_spark) == 5_089
    for *place, predicted, one, two, three, four in in_spark:
        assert trained.predict([one, two, three, four]) == pytest.approx(predicted, abs=1e-9)
        assert live[tuple(place)] == (pytest.approx(predicted, abs=1e-6), forecast.MODEL.version)


def the_pinned_model_is_the_one_that_the_guide_trains(played: Path) -> None:
    trained = msgspec.json.decode((played / "data/arrival-delay-1.json").read_bytes(), type=Model)
    for name in ("means", "deviations", "coefficients", "intercept"):
        assert getattr(forecast.MODEL, name) == pytest.approx(getattr(trained, name), rel=1e-6), name
    assert (forecast.MODEL.version, forecast.MODEL.features) == (trained.version, trained.features)


def the_comparison_of_models_measures_what_spark_predicts(
    played: Path, legs: list[Leg], side: str, predictions: str
) -> None:
    predicted = {row[:3]: row[3] for row in read(played, f"{predictions}/*.parquet", f"{KEY}, prediction")}
    begin_ms = datetime(2013, 2, 11, tzinfo=UTC).timestamp() * 1_000
    off = [
        abs(predicted[one.departure.tail, one.departure.departed_ms, one.departure.flight] - one.delay)
        for one in legs
        if one.departure.departed_ms >= begin_ms and not one.arrival.diverted
    ]
    report = json.loads((played / "data/ab/report.json").read_bytes())
    assert report["metrics"][0][side] == pytest.approx(fmean(off), abs=1e-6)
    assert report["metrics"][0]["low"] > 0


def test_another_file_than_the_pinned_one_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.json"
    digest = write(forecast.MODEL, file)
    assert pinned(file, digest) == forecast.MODEL
    write(msgspec.structs.replace(forecast.MODEL, intercept=0.0), file)
    with pytest.raises(ValueError, match=rf"{digest_of(file.read_bytes())}, and {digest} is pinned"):
        pinned(file, digest)


# --- routes


@pytest.fixture(scope="module")
def routes(legs: list[Leg]) -> dict[tuple[str, str], int]:
    """Flights between airports: the legs, and the flights between the end of a leg and the beginning of the next."""
    found: dict[tuple[str, str], int] = defaultdict(int)
    last: dict[str, str] = {}
    for leg in (one for one in legs if not one.arrival.diverted):
        here, there = leg.departure.origin, leg.departure.destination
        found[here, there] += 1
        if leg.departure.tail in last:
            found[last[leg.departure.tail], here] += 1
        last[leg.departure.tail] = there
    return {(src, dst): count for (src, dst), count in found.items() if src != dst}


def ranks_are_those_of_networkx(played: Path, routes: Mapping[tuple[str, str], int]) -> None:
    graph = nx.DiGraph()
    graph.add_weighted_edges_from((src, dst, count) for (src, dst), count in routes.items())
    step = nx.google_matrix(graph, alpha=DAMPING)
    anywhere = np.full(len(graph), 1 / len(graph))
    expected = dict(zip(graph, anywhere @ np.linalg.matrix_power(step, ROUNDS), strict=True))
    converged = dict(
        zip(graph, np.linalg.matrix_power(step, 1_000)[0], strict=True)
    )  # all rows are the ranks
    ranks: dict[str, float] = dict(read(played, "airports/*.parquet", "airport, rank"))
    assert ranks == pytest.approx(expected, abs=1e-12)
    assert sum(abs(ranks[one] - converged[one]) for one in converged) < DAMPING**ROUNDS


def communities_are_stable_and_networkx_finds_them_too(
    played: Path, routes: Mapping[tuple[str, str], int]
) -> None:
    graph = nx.Graph()
    for (src, dst), count in routes.items():
        graph.add_edge(src, dst, weight=count + routes.get((dst, src), 0))
    labels: dict[str, str] = dict(read(played, "airports/*.parquet", "airport, label"))
    for airport, label in labels.items():
        flights: dict[str, int] = defaultdict(int)
        for other, edge in graph[airport].items():
            flights[labels[other]] += edge["weight"]
        assert flights[label] == max(flights.values()), airport
    grouped: dict[str, set[str]] = defaultdict(set)
    for airport, label in labels.items():
        grouped[label].add(airport)
    found = {frozenset(one) for one in grouped.values()}
    seeds = [
        {frozenset(one) for one in nx.community.fast_label_propagation_communities(graph, weight="weight", seed=seed)}
        for seed in range(50)
    ]  # fmt: skip
    assert len(found) == 3
    assert found in seeds


# --- the notebook


def the_notebook_shows_again_what_is_stored_in_it(played: Path) -> None:
    again, stored = (
        json.loads((folder / "services/lab/delays.ipynb").read_text("utf-8"))["cells"]
        for folder in (played, ROOT)
    )
    shown = [[output["data"] for output in cell["outputs"]] for cell in stored if cell["cell_type"] == "code"]
    assert all(shown)
    assert shown == [
        [output["data"] for output in cell["outputs"]] for cell in again if cell["cell_type"] == "code"
    ]
    assert not [cell for cell in stored if cell["metadata"]], "it is stored with the times of a run"


@pytest.mark.nightly
@pytest.mark.long
def test_what_the_guide_makes_is_right(
    played: Path, history: list[Event], legs: list[Leg], routes: dict[tuple[str, str], int]
) -> None:
    """One test, as the guide takes minutes, and each worker of pytest-xdist would follow it."""
    the_hours_of_the_query_are_those_of_the_history(played, history)
    the_partitions_have_each_leg_once_in_the_folder_of_its_day_and_airport(played, history, legs)
    the_rows_for_training_have_what_was_known_before_each_departure(played, legs)
    the_model_predicts_in_python_and_in_the_live_actor_what_it_predicts_in_spark(played)
    the_pinned_model_is_the_one_that_the_guide_trains(played)
    for side, predictions in (("a", "predictions"), ("b", "predictions-2")):
        the_comparison_of_models_measures_what_spark_predicts(played, legs, side, predictions)
    ranks_are_those_of_networkx(played, routes)
    communities_are_stable_and_networkx_finds_them_too(played, routes)
    the_notebook_shows_again_what_is_stored_in_it(played)
