"""Owners of tasks on an embedded log, in this process."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from tailrace.log.embedded.tasks import EmbeddedTasks
from tailrace.log.tasks import AppTasks


def owning(folder: Path, app: str, numbers: Collection[int]) -> EmbeddedTasks:
    """Tasks of an app, owned until they are closed."""
    return EmbeddedTasks(folder, AppTasks(app, f"{app}.tape", len(numbers), numbers))
