from __future__ import annotations

import os
from pathlib import Path

import pytest

from tailrace.core.errors import UnfitJavaError
from tailrace.spark.session import VECTOR, check_java

FULL = ("java.base@21.0.2", "java.sql@21.0.2", f"{VECTOR}@21.0.2")


def java(folder: Path, *modules: str, ends: int = 0) -> Path:
    """A program that answers as a Java with these modules would; gives the home that it is in."""
    program = folder / "bin" / "java"
    program.parent.mkdir(parents=True)
    lines = "\n".join(modules)
    program.write_text(
        f"#!/bin/sh\ntest \"$*\" = --list-modules || exit 64\ncat <<'END'\n{lines}\nEND\nexit {ends}\n"
    )
    program.chmod(0o755)
    return folder


def environment(**named: object) -> dict[str, str]:
    return {"PATH": os.environ["PATH"], **{name: str(value) for name, value in named.items()}}


def test_a_full_jdk_is_fit_and_java_home_goes_before_the_path(tmp_path):
    home = java(tmp_path / "home", *FULL)
    other = java(tmp_path / "other", *FULL)
    path = f"{other / 'bin'}:{os.environ['PATH']}"
    assert check_java(environment(JAVA_HOME=home, PATH=path)) == home / "bin" / "java"
    assert check_java(environment(PATH=path)) == other / "bin" / "java"


def test_the_java_of_this_machine_is_fit():
    assert check_java().name == "java"


def test_without_any_java_the_mend_names_what_to_install_and_java_home(tmp_path):
    with pytest.raises(UnfitJavaError, match=r"none was found.*JDK 17 or 21.*JAVA_HOME"):
        check_java({"PATH": str(tmp_path)})
    with pytest.raises(UnfitJavaError, match=r"JAVA_HOME is '.*nothing'"):
        check_java(environment(JAVA_HOME=tmp_path / "nothing"))


@pytest.mark.parametrize(
    ("modules", "ends", "said"),
    [
        (("java.base@11.0.22", f"{VECTOR}@11.0.22"), 0, r"Java 11\.0\.22"),
        (FULL[:2], 0, rf"without the module {VECTOR}.*full JDK"),
        ((), 1, "8 or older"),
    ],
)
def test_a_java_that_is_old_or_trimmed_is_refused(tmp_path, modules, ends, said):
    home = java(tmp_path / "unfit", *modules, ends=ends)
    with pytest.raises(UnfitJavaError, match=said) as caught:
        check_java(environment(JAVA_HOME=home))
    assert caught.value.java == str(home / "bin" / "java")


def test_a_java_that_does_not_start_is_refused(tmp_path):
    home = java(tmp_path / "broken", *FULL)
    (home / "bin" / "java").chmod(0o644)
    with pytest.raises(UnfitJavaError, match=r"does not start: Permission denied"):
        check_java(environment(JAVA_HOME=home))
