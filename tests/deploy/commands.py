"""The commands of containers, understood as the command line does; and the compose files, with that of ``tailrace new``."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import click
import pytest

import schemas
from tailrace.cli.main import tailrace
from tailrace.processes.app_loading import find_app
from tests.cli.commands import ALL
from tests.docs.page import ROOT

TEMPLATES = ROOT / "framework" / "tailrace" / "projects" / "templates"
COMMON, SERVICE = TEMPLATES / "common", TEMPLATES / "service"
COMPOSES = [ROOT / "docker-compose.yml", COMMON / "compose.yml"]
"""That of the flights, and that of the template."""


def composed(path: Path) -> Any:
    return import_module("yaml").safe_load(path.read_text("utf-8"))


SETTINGS = {str(one.envvar) for command in ALL.values() for one in command.params if one.envvar}


class Understood(NamedTuple):
    options: dict[str, Any]
    partitions: int
    """Of its app."""
    grace_ms: int
    """Of ``run``; other commands have none."""


def understood(command: Sequence[str], environment: Mapping[str, str]) -> Understood:
    """Options are parsed with what the environment sets, and the app is loaded; ``shop:app`` is that of the template."""
    assert {*environment} <= SETTINGS
    found: click.Command = tailrace
    left = [*command]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(SERVICE)
        patch.setattr(schemas, "__path__", [*schemas.__path__, str(SERVICE / "schemas")])
        for name, value in environment.items():
            patch.setenv(name, value)
        while isinstance(found, click.Group):
            found = found.commands[left.pop(0)]
        with found.make_context(found.name, left) as context:
            (app,) = context.params["apps"] if "apps" in context.params else [context.params["app"]]
            grace_ms = context.params["grace_ms"] if found.name == "run" else 0
            plan = find_app(app).plan()
    for module in ("shop", "schemas.orders"):
        sys.modules.pop(module, None)  # other tests may have a shop, too
    return Understood(context.params, plan.partitions, grace_ms)
