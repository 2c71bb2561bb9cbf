"""All cases by name, in the order of the table."""

from __future__ import annotations

from benchmarks import cases, flights, joins, logs, windows
from benchmarks.cases import Case
from benchmarks.kafka import gap as kafka_gap
from benchmarks.kafka import latency as kafka_latency
from benchmarks.kafka import state as kafka_state
from benchmarks.kafka import throughput as kafka
from benchmarks.served import answers, growth, latency, memory, recovery, replaying, shadowing, throughput
from benchmarks.spark import rebuilds, starts

CASES: dict[str, Case] = {
    "core": cases.core,
    "timer": cases.timer,
    "two-inputs": cases.two_inputs,
    "two-actors": cases.two_actors,
    "rekeyed": cases.rekeyed,
    "entry": cases.entry,
    "sessions": cases.sessions,
    "append": cases.append,
    "durable": cases.durable,
    "large": cases.large,
    "windows": windows.windowed,
    "joins": joins.joined,
    "growth": cases.growth,
    "growth-timers": cases.growth_timers,
    "tape": cases.tape,
    "harness": cases.harness,
    "log": logs.log,
    "worker": throughput.worker,
    "poison": throughput.poison,
    "two-workers": throughput.two_workers,
    "recovery": recovery.recovery,
    "latency": latency.latency,
    "replay": replaying.replaying,
    "flights": flights.flights,
    "growth-served": growth.growth_served,
    "burst": memory.burst,
    "answers": answers.answers,
    "shadow": shadowing.shadowing,
}

KAFKA: dict[str, Case] = {
    "kafka-worker": kafka.worker,
    "kafka-two-workers": kafka.two_workers,
    "kafka-timers": kafka.timers,
    "kafka-flights": kafka.flights,
    "kafka-latency": kafka_latency.latency,
    "kafka-restore": kafka_state.restore,
    "kafka-gap": kafka_gap.gap,
    "kafka-memory": kafka_state.memory,
}
"""The cases that run only with `--kafka`."""

SPARK: dict[str, Case] = {"rebuild": rebuilds.rebuilds, "snapshot": starts.snapshots}
"""The cases that run only with `--spark`."""
