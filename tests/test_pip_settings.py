"""Pip's settings are handed over to uv with the precedence that they have in pip (`.ci/pip_settings.py`)."""

from __future__ import annotations

import runpy
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
LISTED = """
:env:.index-url='https://environment.example/simple'
:env:.timeout='90'
global.cert='/of/a/file.pem'
global.index-url='https://file.example/simple'
global.trusted-host='one.example two.example'
install.cert='/of/pip/install.pem'
"""


def told() -> dict[str, Any]:
    return runpy.run_path(str(ROOT / ".ci" / "pip_settings.py"))


def test_the_environment_has_precedence_over_what_is_for_installing_and_that_over_the_rest() -> None:
    script = told()
    assert script["variables"](script["settings"](LISTED)) == {
        "UV_DEFAULT_INDEX": "https://environment.example/simple",
        "UV_HTTP_TIMEOUT": "90",
        "SSL_CERT_FILE": "/of/pip/install.pem",
        "UV_INSECURE_HOST": "one.example two.example",
    }


def test_a_folder_of_packages_that_is_not_there_is_left_out(tmp_path: Path) -> None:
    there, far = str(tmp_path), "https://packages.example/all"
    given = {"find-links": f"{there}\n{tmp_path / 'gone'} {far}"}
    assert told()["variables"](given) == {"UV_FIND_LINKS": f"{there},{far}"}
