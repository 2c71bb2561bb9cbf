"""What the process of a version says about it."""

from __future__ import annotations

import hashlib

import msgspec

from tailrace.core.declare.plan import Plan
from tailrace.core.engine.delivery import own_inputs
from tailrace.history.reading.app_topics import internal_topics
from tailrace.history.rebuilding.code_digest import code_of


class About(msgspec.Struct):
    """A version of an app."""

    app: str
    version: str
    code: str
    """A digest of its code."""
    partitions: int
    inputs: list[str]
    """The topics that it reads from outside."""
    own: list[str]
    """The topics that it reads and may write: what it sends to itself. In canonical order all of its keys then run as one."""
    topics: list[str]
    """All that it reads or writes."""
    timers: bool
    """Whether an actor has timers."""
    fields: dict[str, dict[str, str]]
    """By actor and field: its type."""
    schemas: dict[str, str]
    """By actor, the digest of its schema."""


def about(plan: Plan, reference: str) -> About:
    """Describe this version."""
    read, own = [one.name for one in plan.inputs], own_inputs(plan)
    return About(
        app=plan.app,
        version=plan.version,
        code=digest_of(sorted(code_of(reference, plan).items())),
        partitions=plan.partitions,
        inputs=[one for one in read if one not in own and one != plan.inbox_topic],
        own=sorted(own),
        topics=[*read, *plan.outputs, *internal_topics(plan)],
        timers=any(one.schema.timers for one in plan.actors),
        fields={one.name: {each.name: str(each) for each in one.schema.fields} for one in plan.actors},
        schemas={one.name: digest_of(one.schema) for one in plan.actors},
    )


def digest_of(value: object) -> str:
    """A digest of something that msgspec encodes."""
    return hashlib.sha256(msgspec.msgpack.encode(value)).hexdigest()
