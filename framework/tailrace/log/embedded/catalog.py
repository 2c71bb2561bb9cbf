"""The state of the log after all commits, without records: topics, ends, group offsets, epochs, watermarks, segments."""

from __future__ import annotations

from tailrace.core.errors import UnknownTopicError
from tailrace.core.suggestions import did_you_mean
from tailrace.log.embedded.frames import Meta, Published, State
from tailrace.log.interface import TopicPartition, TopicSettings


class Catalog:
    """Built by applying metas in order. Every process that follows the log has the same catalog."""

    def __init__(self, state: State) -> None:
        self.topics: dict[str, TopicSettings] = dict(state.topics)
        self.starts: dict[str, list[int]] = {topic: list(at) for topic, at in state.starts.items()}
        self.ends: dict[str, list[int]] = {topic: list(at) for topic, at in state.ends.items()}
        self.epochs: dict[str, int] = dict(state.epochs)
        """By transactional id, how often it was taken over."""
        self.offsets: dict[str, dict[TopicPartition, int]] = {
            group: {TopicPartition(topic, partition): at for topic, partition, at in offsets}
            for group, offsets in state.offsets.items()
        }
        self.published: dict[tuple[str, str], Published] = {}
        """The last publication by topic and publisher."""
        self._left: dict[tuple[str, str], Published] = {}
        """Of publishers that hold no reader back: their last watermark, at which their readers stay."""
        for one in state.published:
            self._publish(one)
        self.segments: dict[int, int] = dict(state.segments)
        """By number, the generation of each sealed segment that still exists, in ascending order."""

    def state(self) -> State:
        """The whole catalog, for the beginning of a segment."""
        return State(
            topics=self.topics,
            starts=self.starts,
            ends=self.ends,
            epochs=self.epochs,
            offsets={
                group: [(topic, partition, at) for (topic, partition), at in offsets.items()]
                for group, offsets in self.offsets.items()
            },
            published=[*self._left.values(), *self.published.values()],
            segments=self.segments,
        )

    def apply(self, meta: Meta) -> None:
        """Apply the meta of a frame."""
        for topic, settings in meta.topics.items():
            known = topic in self.topics
            self.topics[topic] = settings
            if known:
                continue  # only the retention changes
            self.starts[topic] = [0] * settings.partitions
            self.ends[topic] = [0] * settings.partitions
        for block in meta.blocks:
            self.ends[block.topic][block.partition] = block.end
        if meta.offsets:
            offsets = self.offsets.setdefault(meta.group, {})
            for topic, partition, at in meta.offsets:
                offsets[TopicPartition(topic, partition)] = at
        for one in meta.published:
            self._publish(one)
        for topic, partition, at in meta.starts:
            self.starts[topic][partition] = at
        for group in meta.forgotten:
            self.offsets.pop(group, None)
        self.epochs.update(meta.epochs)
        for number, generation in meta.cleaned.items():
            if generation < 0:
                self.segments.pop(number, None)
            else:
                self.segments[number] = generation

    def _publish(self, one: Published) -> None:
        name = one.topic, one.publisher
        before = self.published.get(name)
        self.published[name] = one
        if one.watermark_ms is not None:
            self._left.pop(name, None)
        elif before is not None and before.watermark_ms is not None:
            self._left[name] = before

    def settings(self, topic: str) -> TopicSettings:
        """The settings of a topic that exists."""
        try:
            return self.topics[topic]
        except KeyError:
            raise UnknownTopicError(
                "there is no such topic in the log",
                topic=topic,
                hint=did_you_mean(topic, self.topics, "Create it, or correct the name."),
            ) from None

    def check(self, topic: str, partition: int) -> None:
        """Check that a topic has a partition."""
        count = self.settings(topic).partitions
        if not 0 <= partition < count:
            raise UnknownTopicError(f"the topic has {count} partitions", topic=topic, partition=partition)
