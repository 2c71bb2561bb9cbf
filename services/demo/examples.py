"""Shows the small examples: their inputs and outputs, a crash in the middle, and a replay from the beginning.

    python -m services.demo examples [name ...]

Every scene is a list of events and faults. It runs three times: as written, without its crashes, and replayed along the tape.
The exit code is 1 if any two runs differ, or if the outputs are not the expected ones.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tailrace as tr
from schemas.activity import Activity, Count
from schemas.sensors import Average, Opening, Reading, RisingAlert
from schemas.shapes import ColourCount, Shape
from services import count_with_timeout, forwarder, sensors, shapes
from tailrace.testing import COMMIT, CRASH, END, Clock, Emitted, Harness, Item, ReplayReport, Watermark

TELL: Mapping[type, Callable[[Any], str]] = {
    Activity: lambda e: f"{e.key:8}at {e.at_ms} ms",
    Average: lambda e: (
        f"{e.sensor:8}until {e.window_end_ms} ms: {e.celsius:.1f} °C, the mean of {e.readings}"
    ),
    ColourCount: lambda e: f"{e.colour:8}{e.count}",
    Count: lambda e: f"{e.key:8}{e.count}",
    Opening: lambda e: f"{e.sensor:8}open from {e.at_ms} ms on, for {e.for_ms} ms",
    Reading: lambda e: f"{e.sensor:8}at {e.at_ms} ms: {e.fahrenheit:.1f} °F",
    RisingAlert: lambda e: (
        f"{e.sensor:8}rising since {e.since_ms} ms by the clock, now {e.fahrenheit:.1f} °F"
    ),
    Shape: lambda e: f"{e.drawing:8}{e.colour} {e.kind}",
}

SIGNS = {
    "COMMIT": "✓ commit",
    "CRASH": "✗ crash: everything since the last commit is lost, and is handled again",
    "END": "✓ end of input: all event-time timers fire, and everything is committed",
}


@dataclass(frozen=True)
class Scene:
    """One example: its script, and the expected outputs, in order for each topic and key."""

    app: tr.App
    about: str
    script: Sequence[Item]
    expected: Sequence[tuple[tr.Topic[Any, Any], Sequence[Any]]]


SCENES = [
    Scene(
        sensors.app,
        "°C per sensor over 5 s of event time; an alert when a sensor has been rising for 1 s",
        [
            (sensors.readings, Reading("hall", 500, 50.0)),
            (sensors.readings, Reading("attic", 1_000, 86.0)),
            (sensors.readings, Reading("hall", 2_500, 68.0)),
            COMMIT,
            Clock(1_000),
            (sensors.readings, Reading("hall", 1_900, 59.0)),
            CRASH,
            (sensors.readings, Reading("hall", 7_000, 59.0)),
            (sensors.readings, Reading("hall", 4_900, 212.0)),
            COMMIT,
            END,
        ],
        [
            (sensors.rising_alerts, [RisingAlert("hall", 0, 68.0)]),
            (sensors.late_readings, [Reading("hall", 4_900, 212.0)]),
            (
                sensors.averages,
                [
                    Average("attic", 5_000, 30.0, 1),
                    Average("hall", 5_000, 15.0, 3),
                    Average("hall", 10_000, 15.0, 1),
                ],
            ),
        ],
    ),
    Scene(
        count_with_timeout.app,
        "the count of a key, emitted after 500 ms of event time without activity",
        [
            (count_with_timeout.activity, Activity("a", 1_000)),
            (count_with_timeout.activity, Activity("a", 1_200)),
            CRASH,
            (count_with_timeout.activity, Activity("a", 1_200)),
            COMMIT,
            Watermark(1_500),
            COMMIT,
            CRASH,
            Watermark(1_700),
            COMMIT,
            END,
        ],
        [(count_with_timeout.counts, [Count("a", 3)])],
    ),
    Scene(
        shapes.app,
        "orange is filtered out, the others are re-keyed by colour and counted",
        [
            (shapes.shapes, Shape("d1", "circle", "yellow")),
            (shapes.shapes, Shape("d2", "square", "blue")),
            (shapes.shapes, Shape("d3", "circle", "orange")),
            (shapes.shapes, Shape("d4", "star", "yellow")),
            COMMIT,
            (shapes.shapes, Shape("d5", "square", "yellow")),
            CRASH,
            (shapes.shapes, Shape("d6", "square", "blue")),
            (shapes.shapes, Shape("d7", "star", "orange")),
            (shapes.shapes, Shape("d8", "circle", "yellow")),
            (shapes.shapes, Shape("d9", "star", "blue")),
            END,
        ],
        [
            (
                shapes.colour_counts,
                [
                    *(ColourCount("blue", n) for n in (1, 2, 3)),
                    *(ColourCount("yellow", n) for n in (1, 2, 3, 4)),
                ],
            )
        ],
    ),
    Scene(
        forwarder.app,
        "readings pass while their sensor's gate is open, whichever of the two comes first",
        [
            (forwarder.readings, Reading("hall", 1_200, 61.0)),
            (forwarder.readings, Reading("hall", 900, 60.0)),
            COMMIT,
            (forwarder.openings, Opening("hall", 1_000, 500)),
            CRASH,
            (forwarder.readings, Reading("hall", 1_499, 62.0)),
            (forwarder.readings, Reading("hall", 1_500, 63.0)),
            END,
        ],
        [(forwarder.forwarded, [Reading("hall", 1_200, 61.0), Reading("hall", 1_499, 62.0)])],
    ),
]


def main(names: Sequence[str]) -> int:
    """Run all scenes, or those of the named apps. Returns the exit code."""
    scenes = [scene for scene in SCENES if not names or scene.app.name in names]
    if not scenes or len(scenes) < len(set(names)):
        print("There are:", ", ".join(scene.app.name for scene in SCENES))
        return 2
    print(
        "Small services, run by the test harness: the log is in memory; all other code is that of a worker."
    )
    print("   → input   ← output, visible after its commit   ✓ commit   ✗ crash")
    found = {scene.app.name: play(scene) for scene in scenes}
    print("\n── Summary ──\n")
    print(
        f"   {'service':20}{'records':>8}{'timers':>8}{'outputs':>9}{'crashes':>9}   replayed from the beginning"
    )
    for scene in scenes:
        report, crashes = found[scene.app.name], list(scene.script).count(CRASH)
        if report is None:
            print(f"   {scene.app.name:20}{'':25}{crashes:9}   DIFFERS: see above")
        else:
            counts = f"{report.records:8}{report.timers:8}{report.outputs:9}"
            print(
                f"   {scene.app.name:20}{counts}{crashes:9}   equal in every byte ({report.rows} rows of state)"
            )
    different = list(found.values()).count(None)
    print(f"\n{different} of {len(found)} differ." if different else "\nAll results are as expected.")
    return 1 if different else 0


def play(scene: Scene) -> ReplayReport | None:
    """Run a scene and show it. Returns None if the outputs are not the expected ones."""
    print(f"\n── {scene.app.name} ── {scene.about}\n")
    try:
        disturbed, report = run(scene, scene.script, show)
        undisturbed, _ = run(scene, [item for item in scene.script if item != CRASH], None)
    except tr.TailraceError as error:
        print(f"   DIFFERS: {error}")
        return None
    for topic, expected in scene.expected:
        for what, emitted in (("", disturbed), (" without the crash", undisturbed)):
            if by_key(emitted, topic) != sorted_by_key(topic, expected):
                print(f"   DIFFERS: {topic.name}{what} has {emitted.to(topic)}, not {list(expected)}")
                return None
    return report


def run(
    scene: Scene, script: Sequence[Item], on_progress: Callable[[Item, Emitted, Scene], None] | None
) -> tuple[Emitted, ReplayReport]:
    """Run a script item by item, then replay it along the tape and compare every byte."""
    emitted = Emitted()
    with Harness(scene.app, commit_every="manual") as h:
        for item in script:
            visible = h.run([item])
            if on_progress is not None:
                on_progress(item, visible, scene)
            emitted += visible
        return emitted, h.replay()


def show(item: Item, visible: Emitted, scene: Scene) -> None:
    """Print one item of a script, and the outputs that became visible with it."""
    match item:
        case (topic, event):
            print(f"   → {topic.name:16}{TELL[type(event)](event)}")
        case Clock(to_ms):
            print(f"     the clock shows {to_ms} ms")
        case Watermark(to_ms):
            print(f"     the watermark is at {to_ms} ms")
        case _:
            print(f"   {SIGNS[str(item)]}")
    sinks = [topic.name for topic, _ in scene.expected]
    for out in visible:
        if out.topic in sinks:
            print(f"   ← {out.topic:16}{TELL[type(out.event)](out.event)}")


def by_key(emitted: Emitted, topic: tr.Topic[Any, Any]) -> list[Any]:
    """The events in a topic, grouped by key. They are ordered within a key only, as keys have no order between them."""
    return [
        out.event for out in sorted((o for o in emitted if o.topic == topic.name), key=lambda out: out.key)
    ]


def sorted_by_key(topic: tr.Topic[Any, Any], events: Sequence[Any]) -> list[Any]:
    """Expected events, grouped by key like in ``by_key``."""
    return sorted(events, key=topic.key_of)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
