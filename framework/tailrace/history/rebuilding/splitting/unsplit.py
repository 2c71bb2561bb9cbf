"""Which rebuilds are not split by key, even if a split was requested."""

from __future__ import annotations

from tailrace.history.rebuilding.job import Job
from tailrace.history.rebuilding.output_watermarks import marks_wanted


def whole_because(job: Job) -> str:
    """The reason why the partitions of a job cannot be split, as text. Empty if they can be."""
    request = job.request
    if job.delivers_sends:
        return "all partitions are taken as one"
    if marks_wanted(job) and job.order == "canonical":
        return "without a tape, outputs that go to topics are made in one piece"
    if job.finish:
        return "the end of input goes through a partition in one piece"
    for wanted, what in (
        (request.keys, "of some keys"),
        (request.failures.on_error != "stop", "that may write dead letters"),
        (request.source.after_deleted, "that continues without deleted records"),
        (request.failures.lenient, "that is compared with another"),
    ):
        if wanted:
            return f"a rebuild {what} is done in one piece for each partition"
    return ""
