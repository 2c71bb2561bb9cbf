"""Arguments and options of several commands."""

from __future__ import annotations

import functools
import os
import select
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import click

from tailrace.cli.console import Part, say
from tailrace.cli.settings import FC, refuse_typed, setting
from tailrace.cli.showing import json_line
from tailrace.cli.value_types import TimeType
from tailrace.core.declare.app import App
from tailrace.core.declare.plan import Plan
from tailrace.core.declare.topic import Topic
from tailrace.core.errors import UsageError
from tailrace.core.names import apps_in, is_changelog_of, own_topics_of
from tailrace.core.suggestions import did_you_mean
from tailrace.log.interface import Log, StoredLog
from tailrace.log.opening import check_url, is_url, open_log
from tailrace.log.options import LogOptions, NewTopics
from tailrace.processes.app_loading import find_app

DEFAULT_LOG = "data/log"
KAFKA_ONLY = "works on Kafka only"
DEFAULT_SNAPSHOTS = "data/snapshots"
app_argument = click.argument("app", metavar="APP")


class LogType(click.Path):
    """The place of a log: a folder, as a ``Path``; with ``kafka`` also the URL of a cluster, as a ``str``."""

    def __init__(self, *, kafka: bool = False, path_type: type = Path) -> None:
        super().__init__(path_type=path_type, file_okay=False)
        self._kafka = kafka

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """See ``click.Path``."""
        if is_url(value):
            if not self._kafka:
                self.fail(
                    "this command works with the embedded log only: give the folder of one.", param, ctx
                )
            try:
                check_url(value)
            except UsageError as error:
                self.fail(str(error), param, ctx)
            return value
        if isinstance(value, str) and value.lower().startswith("kafka:") and not Path(value).is_dir():
            self.fail(f"{value!r} is no folder: write kafka://host:9092 for Kafka.", param, ctx)
        return super().convert(value, param, ctx)


def _log_option(into: str, type_: LogType, help: str) -> Callable[[FC], FC]:
    return setting("--log", into, type=type_, default=DEFAULT_LOG, show_default=True, help=help)


_ANY_LOG = "The event log: a folder, or kafka://host:9092."
log_option = _log_option("folder", LogType(), "Folder of the event log.")
any_log_option = _log_option("folder", LogType(kafka=True), _ANY_LOG)
past_options = (
    _log_option("log", LogType(kafka=True, path_type=str), _ANY_LOG),
    setting("--archive", metavar="URI", help="Read what the log has deleted from this archive of it."),
)
"""The options that name a ``Past``, by the names of its fields."""


def other_log_option(flag: str, into: str, help: str) -> Callable[[FC], FC]:
    """An option for a log beside that of ``any_log_option``."""
    return click.option(flag, into, type=LogType(kafka=True), required=True, metavar="LOG", help=help)


state_option = setting(
    "--state",
    type=click.Path(path_type=Path, file_okay=False),
    default="data/state",
    show_default=True,
    help="Folder of the service's state: one folder per task in it, <app>/<partition>.",
)
snapshots_option = setting(
    "--snapshots",
    "uri",
    metavar="URI",
    default=DEFAULT_SNAPSHOTS,
    show_default=True,
    help="Where snapshots are: a folder, file://…, s3://bucket/prefix.",
)
name_option = click.option(
    "--name", metavar="NAME", help="Make the snapshot a savepoint of this name, never deleted automatically."
)
from_snapshot_option = click.option(
    "--from-snapshot",
    default="",
    metavar="URI[#ID]",
    help="Begin with the state of this snapshot, the latest if no id or name is given.",
)
any_environment_option = click.option(
    "--any-environment",
    is_flag=True,
    help="Also replay with another Python, msgspec or time zone data than those of the first run.",
)


def packed(into: str, make: Callable[..., object], *options: Callable[[Any], Any]) -> Callable[[FC], FC]:
    """Pass several options as one argument ``into`` of a command: ``make`` makes it from their values."""
    known = click.Command(None)
    for option in options:
        option(known)
    names = [str(one.name) for one in known.params]

    def decorate(command: Any) -> Any:
        @functools.wraps(command)
        def called(**given: Any) -> Any:
            own = {name: given.pop(name) for name in names}
            return command(**{into: make(**own)}, **given)

        return functools.reduce(lambda some, option: option(some), reversed(options), called)

    return decorate


def workers_option(default: int | None, help: str) -> Callable[[FC], FC]:
    """The option ``--workers``. A default of None means the number of cores."""
    return setting(
        "--workers",
        type=click.IntRange(1),
        default=default,
        show_default=True if default is not None else "number of cores",
        help=help,
    )


keys_option = click.option(
    "--key", "keys", multiple=True, metavar="KEY", help="Only this key; may be repeated."
)
partitions_option = click.option(
    "--partition",
    "partitions",
    type=click.IntRange(0),
    multiple=True,
    help="Only this partition; may be repeated.",
)
until_option = click.option(
    "--until",
    "until_ms",
    type=TimeType(),
    metavar="TIME",
    help="Stop a task as soon as its watermark reaches this event time.",
)
log_format_option = setting(
    "--log-format",
    type=click.Choice(["auto", "json", "text"]),
    default="auto",
    show_default=True,
    help="Format of the logs on standard error; auto: text on a terminal, else JSON.",
)
json_option = click.option(
    "--json", "as_json", is_flag=True, help="Write JSON: one object, or one object per line."
)

new_topics_options = packed(
    "new_topics",
    NewTopics,
    setting(
        "--replication",
        type=click.IntRange(1, 100),
        help="On Kafka: replicas of new topics (default: the brokers' default; 3 in production).",
    ),
    setting(
        "--min-insync",
        type=click.IntRange(1, 100),
        help="On Kafka: replicas that must have a commit, of new topics (default: the brokers' default; 2 in "
        "production).",
    ),
)


def opened_log(
    place: Path | str, *, create: bool = False, options: LogOptions | None = None
) -> closing[StoredLog]:
    """The log at a place. It is closed at the end of the block.
    Raises click.UsageError: the replication of new topics is on the command line, and the log is in a folder.
    """
    if options is not None and options.new_topics is not None and not is_url(place):
        refuse_new_topics_options()
    return closing(open_log(place, options, create=create))


def refuse_new_topics_options() -> None:
    """Refuse ``new_topics_options`` on the command line of a command that works on an embedded log."""
    refuse_typed(NewTopics._fields, KAFKA_ONLY)


def name_of(app: str) -> str:
    """The name of an app, from a reference to its code, or from the name itself if its code is gone."""
    return find_app(app).name if ":" in app else app


def plans_of(apps: Sequence[str]) -> list[Plan]:
    """The plans of apps, each once."""
    found: dict[str, tuple[str, App]] = {}
    for reference in apps:
        app = find_app(reference)
        first, there = found.setdefault(app.name, (reference, app))
        if there is not app and reference != first:
            raise click.BadParameter(
                f"{first} and {reference} are both called {app.name!r}: write {reference}@other-name for the second",
                param_hint="APP",
            )
    return [app.plan() for _, app in found.values()]


def topic_of_app(reference: str, name: str, hint: str | None = None) -> Topic[Any, Any]:
    """A topic as an app declares it.

    Raises:
        click.BadParameter: The app declares no such topic.
        UnknownAppError, DefinitionError: There is no such app, or its definition is invalid.
    """
    topics = find_app(reference).plan().topics
    if name not in topics:
        raise click.BadParameter(
            f"{reference} declares no topic {name!r}, but {', '.join(sorted(topics))}. "
            f"{did_you_mean(name, topics)}",
            param_hint=hint,
        )
    return topics[name]


def refuse_own_topic(log: Log, topic: str, why: str) -> None:
    """Refuse an app's own topics. ``why`` completes the sentence "the app …, which".
    Raises click.BadParameter: the topic is an app's changelog, tape or inbox, or holds its dead letters or
    redriven records.
    """
    app = next(
        (one for one in apps_in(log.topics()) if topic in own_topics_of(one) or is_changelog_of(one, topic)),
        None,
    )
    if app is not None:
        raise click.BadParameter(f"{topic!r} belongs to the app {app!r}, which {why}.", param_hint="TOPIC")


def outside_of_log(place: str | Path, log: str | Path | None, hint: str) -> None:
    """Check that a place, given by a path or a URI, is outside the log's folder, if there is a log.
    Raises click.BadParameter: the place is in that folder; or it is empty, which would mean the working folder.
    """
    if not str(place):
        raise click.BadParameter("it is empty", param_hint=hint)
    if log is None or "://" in str(place) or "://" in str(log):
        return
    path = Path(place).resolve()
    if Path(log).resolve() in (path, *path.parents):
        raise click.BadParameter(
            f"{str(place)!r} is in the log's folder, which must hold only the log", param_hint=hint
        )


@contextmanager
def piped() -> Generator[None]:
    """Handle errors of standard output. A reader that closes the pipe early, such as ``head``, is no error.
    Raises click.ClickException: the output cannot be written for another reason, such as a full disk.
    """
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        # Otherwise the flush of the remaining buffer at exit would raise again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        raise click.ClickException(f"The output cannot be written: {error.strerror}.") from None


def tell(said: object, lines: Iterable[Part], *, as_json: bool) -> None:
    """Write what a command has found to standard output: an object as JSON, or lines for people."""
    tell_each([said], lines, as_json=as_json)


def tell_each(found: Iterable[object], lines: Iterable[Part], *, as_json: bool) -> None:
    """The same of several objects: each is a line of JSON."""
    with piped():
        for one in found if as_json else ():
            click.echo(json_line(one))
        for line in () if as_json else lines:
            say(line)


def check_is_read() -> None:
    """Check that the output is still read, in a command that waits before it writes again.
    Raises BrokenPipeError: standard output is such a pipe.
    """
    try:
        output = sys.stdout.fileno()
    except (OSError, ValueError):
        return  # it is no file
    polled = select.poll()
    polled.register(output, 0)
    if any(events & select.POLLERR for _, events in polled.poll(0)):
        raise BrokenPipeError
