"""The arguments of ``App.run``: the options of ``tailrace run``, as keywords."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Literal, TypedDict

if TYPE_CHECKING:
    from os import PathLike


class RunOptions(TypedDict, total=False):
    """The options of ``tailrace run``; its help explains them.

    ``--until-end`` is ``until_end=True``, ``--as`` is ``as_=``.
    """

    log: str | PathLike[str]
    state: str | PathLike[str]
    workers: int
    standbys: int
    downgrade: bool
    commit_interval: str | int | timedelta
    store_every: int
    memory_mib: int
    max_record_bytes: int
    until_end: bool
    end_of_input: bool
    allow_dead_letters: bool
    create_topics: bool
    replication: int
    min_insync: int
    change_inputs: bool
    after_deleted: bool
    accept_clock: bool
    after_end: bool
    drop_state: Sequence[str]
    from_snapshot: str
    replace_state: bool
    snapshots: str
    snapshot_every: str | int | timedelta
    snapshot_keep: int
    as_: str
    fsync: Literal["interval", "commit"]
    handler_warning: str | int | timedelta
    grace: str | int | timedelta
    http: str
    http_token_file: str | PathLike[str]
    http_certificate: str | PathLike[str]
    http_key: str | PathLike[str]
    http_client_ca: str | PathLike[str]
    log_format: Literal["auto", "json", "text"]
