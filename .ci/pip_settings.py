"""Prints pip's settings of where packages come from, and whom to trust, as the variables of uv, which does not read them.

    eval "$(python .ci/pip_settings.py)"

A variable that is set already has precedence.
"""

import ast
import os
import shlex
import subprocess
import sys
from pathlib import Path

SECTIONS = ("global", "install", ":env:")
"""The later have precedence."""
VARIABLES = {
    "index-url": ("UV_DEFAULT_INDEX", " "),
    "extra-index-url": ("UV_INDEX", " "),
    "find-links": ("UV_FIND_LINKS", ","),
    "no-index": ("UV_NO_INDEX", " "),
    "trusted-host": ("UV_INSECURE_HOST", " "),
    "cert": ("SSL_CERT_FILE", " "),
    "client-cert": ("SSL_CLIENT_CERT", " "),
    "proxy": ("ALL_PROXY", " "),
    "default-timeout": ("UV_HTTP_TIMEOUT", " "),
    "timeout": ("UV_HTTP_TIMEOUT", " "),
}
"""By setting, the variable, and what is between several values."""


def settings(listed: str) -> dict[str, str]:
    """The settings by name, from the lines of ``pip config list``."""
    found: dict[str, str] = {}
    for section in SECTIONS:
        for line in listed.splitlines():
            place, _, value = line.partition("=")
            if place.startswith(f"{section}."):
                found[place.removeprefix(f"{section}.")] = ast.literal_eval(value)
    return found


def variables(found: dict[str, str]) -> dict[str, str]:
    """The variables of uv. A folder of packages that is not there is left out: pip passes over it, and uv fails."""
    made: dict[str, str] = {}
    for name, (variable, between) in VARIABLES.items():
        values = found.get(name, "").split()
        if name == "find-links":
            values = [one for one in values if "://" in one or Path(one).exists()]
        if values:
            made[variable] = between.join(values)
    return made


def main() -> None:
    """Ask pip, and print what a shell reads."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    for name, value in variables(settings(listed)).items():
        if not os.environ.get(name):
            print(f"export {name}={shlex.quote(value)}")  # a shell reads it


if __name__ == "__main__":
    main()
