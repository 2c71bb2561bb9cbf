"""The options of ``tailrace rebuild``, one group for each part of the request."""

from __future__ import annotations

from typing import Any

import click

from tailrace.cli.arguments import (
    DEFAULT_SNAPSHOTS,
    any_environment_option,
    from_snapshot_option,
    name_option,
    packed,
    past_options,
    workers_option,
)
from tailrace.cli.settings import setting
from tailrace.core.declare.topic import ON_ERROR
from tailrace.history.rebuilding.engines import Where
from tailrace.history.rebuilding.request import Destination, Execution, Failures, Source
from tailrace.state.snapshots import LATEST, which_where


def _source(*, from_snapshot: str, after_deleted: bool, **past: Any) -> Source:
    """The source of a rebuild."""
    base, base_id = which_where(from_snapshot) if from_snapshot else (None, LATEST)
    return Source(**past, base=base, base_id=base_id, after_deleted=after_deleted)


after_deleted_option = click.option(
    "--after-deleted", is_flag=True, help="In stages: skip the records that the log has deleted."
)
source_options = packed("source", _source, *past_options, from_snapshot_option, after_deleted_option)
destination_options = packed(
    "to",
    Destination,
    setting(
        "--to",
        "uri",
        setting="snapshots",
        metavar="URI",
        default=DEFAULT_SNAPSHOTS,
        show_default=True,
        help="Where the snapshot goes: a folder, or s3://bucket/prefix and the like.",
    ),
    name_option,
    click.option(
        "--outputs",
        metavar="none|parquet:URI",
        default="none",
        show_default=True,
        help="Where to write the handlers' outputs: nowhere, or to Parquet files.",
    ),
)
tables_option = click.option(
    "--tables",
    type=click.Choice(["auto", "first", "as-of"]),
    default="auto",
    show_default=True,
    help="In stages, the reference data that the first events find: what the service had read by then (auto), all of it, or what has "
    "an earlier timestamp.",
)
failure_options = packed(
    "failures",
    Failures,
    click.option(
        "--on-error",
        type=click.Choice(ON_ERROR),
        default="stop",
        show_default=True,
        help="In stages, what to do with a failure of a handler, or of decoding a record.",
    ),
    any_environment_option,
)
execution_options = packed(
    "execution",
    Execution,
    setting(
        "--work",
        type=click.Path(file_okay=False),
        help="Folder for intermediate files (default: beside the snapshots).",
    ),
    click.option(
        "--split",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        help="In stages: divide the work of each partition into this many ranges of keys, for more processes than partitions.",
    ),
)
engine_options = packed(
    "where",
    Where,
    setting(
        "--engine",
        type=click.Choice(["local", "spark"]),
        default="local",
        show_default=True,
        help="Where the work is done: in processes of this machine, or in Spark.",
    ),
    setting(
        "--master",
        metavar="URL",
        help="With --engine spark: the cluster (default: local[*], or that of spark-submit).",
    ),
    workers_option(None, "With --engine local: processes of this machine."),
)
