"""The event log as the runtime sees it: topics of ordered records, fenced writers, all-or-nothing commits.

One small interface and its implementations; it carries bytes and knows neither actors nor state.
"""

from tailrace.log.interface import (
    Fetch,
    Log,
    Part,
    Publication,
    Reader,
    TopicPartition,
    TopicSettings,
    Writer,
)

__all__ = ["Fetch", "Log", "Part", "Publication", "Reader", "TopicPartition", "TopicSettings", "Writer"]
