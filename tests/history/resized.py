"""An app of the cast that tests reshape: operators in the order of event time, with messages, windows, a stream and topics of its own."""

from __future__ import annotations

from tailrace.core.records import Output
from tailrace.history.reading.stretches import scan
from tailrace.log import Log
from tests.cast.apps import case_of
from tests.cast.member import Found
from tests.cast.world import decoded

CASE = case_of("webs", 2250)
EVENTS = CASE.inputs
make_app = CASE.make
of_2, of_3, of_5 = map(make_app, (2, 3, 5))


def found(log: Log) -> Found:
    """What the app has come to, to be compared with what the case expects."""
    records = [one for number in range(log.partitions("results")) for one in scan(log, "results", number)]
    return decoded(of_2, "results", [Output("results", one.key, one.value, 0) for one in records])
