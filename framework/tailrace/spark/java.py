"""Checks whether Spark can run on the Java that it would start, for an error message before it tries.

Spark 4 needs a JDK 17 or 21 with all of its modules. With a trimmed runtime it starts, and fails much later
with a stack trace: such a runtime lacks the module ``jdk.incubator.vector``, which Spark requests by name.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

from tailrace.core.errors import UnfitJavaError

VECTOR = "jdk.incubator.vector"

_HINT = "Install a full JDK 17 or 21 (Debian: openjdk-17-jdk-headless), and set JAVA_HOME to its folder."
_ANSWER_S = 30.0


def check_java(environment: Mapping[str, str] | None = None) -> Path:
    """The ``java`` that Spark will start, checked: that of JAVA_HOME, or the first on the PATH.
    Raises UnfitJavaError: there is none, it does not start, is of another version, or lacks modules.
    """
    environment = os.environ if environment is None else environment
    java = _found(environment)
    modules = _modules(java, environment)
    version = modules.get("java.base", "8 or older")
    if VECTOR not in modules or re.match(r"(17|21)\b", version) is None:
        lacking = "" if VECTOR in modules else f" without the module {VECTOR}"
        raise UnfitJavaError(
            f"it is Java {version}{lacking}, and Spark needs a full JDK 17 or 21", java=str(java), hint=_HINT
        )
    return java


def _found(environment: Mapping[str, str]) -> Path:
    home = environment.get("JAVA_HOME")
    if home:
        java = Path(home) / "bin" / "java"
        if not java.is_file():
            raise UnfitJavaError(f"JAVA_HOME is {home!r}, and there is no bin/java in it", hint=_HINT)
        return java
    on_path = shutil.which("java", path=environment.get("PATH", ""))
    if on_path is None:
        raise UnfitJavaError("Spark needs Java, and none was found: JAVA_HOME is not set", hint=_HINT)
    return Path(on_path)


def _modules(java: Path, environment: Mapping[str, str]) -> dict[str, str]:
    """The modules of a Java by name, with their versions. Empty for a version without modules."""
    try:
        done = subprocess.run(  # noqa: S603 (it is the very program that Spark is about to start)
            [str(java), "--list-modules"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_ANSWER_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise UnfitJavaError(
            f"it did not answer within {_ANSWER_S:.0f} s", java=str(java), hint=_HINT
        ) from None
    except OSError as error:
        raise UnfitJavaError(f"it does not start: {error.strerror}", java=str(java), hint=_HINT) from None
    found: dict[str, str] = {}
    for line in done.stdout.decode(errors="replace").splitlines():
        name, at, version = line.strip().partition("@")
        if at:
            found[name] = version.split()[0] if version.strip() else ""
    return found
