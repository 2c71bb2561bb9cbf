"""Laws on the repository itself: what may stand in a file that is tracked, and how the rooms are built."""

import ast
import re
import subprocess
import zipfile
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FRAMEWORK = ROOT / "framework" / "tailrace"
LONGEST_MODULE = 500

# Written so that no pattern matches its own source.
FOREIGN = {
    "a path of somebody's machine": re.compile(r"(?<![\w.])/(?:home|root|Users|work)/\w|[A-Z]:\\Users\\"),
    "the host or the choice of a package registry": re.compile(
        r"(?:pypi|pythonhosted|npmjs|yarnpkg)\.(?:org|com)|(?:--index|--find|--trusted)-(?:url|links|host)[ =]\S*//"
    ),
}


def tracked() -> list[Path]:
    """The files that git tracks, or, in an unpacked archive, all files outside of folders that tools make."""
    try:
        git = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        made = re.compile(r"^(\.venv|\.git$|\.hypothesis$|\.reports$|\.\w+_cache$|__pycache__$|build$|dist$)")
        files = (path for path in ROOT.rglob("*") if path.is_file())
        return [path for path in files if not any(made.match(part) for part in path.relative_to(ROOT).parts)]
    return [path for name in git.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def packages() -> Iterator[Path]:
    """Every folder under the framework, the services and the schemas that holds Python."""
    for top in (FRAMEWORK, ROOT / "services", ROOT / "schemas"):
        yield from sorted({path.parent for path in top.rglob("*.py") if "templates" not in path.parts})


def test_no_tracked_file_names_a_machine_or_a_registry() -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {what}: {line.strip()}"
        for path in tracked()
        for number, line in enumerate(path.read_text("utf-8", errors="replace").splitlines(), 1)
        for what, pattern in FOREIGN.items()
        if pattern.search(line)
    ]
    assert not found, "\n".join(found)


@pytest.mark.parametrize(
    "line",
    [
        "cache = '/" + "home/someone/cache'",
        "see /" + "root/notes.txt",
        "pip install --index" + "-url https://mirror.example/simple x",
        "from https://files.pythonhosted" + ".org/packages/x.whl",
    ],
)
def test_the_search_for_foreign_names_can_fail(line: str) -> None:
    assert any(pattern.search(line) for pattern in FOREIGN.values())


def test_every_package_says_what_it_is_for() -> None:
    silent = [
        str(folder.relative_to(ROOT))
        for folder in packages()
        if not (init := folder / "__init__.py").is_file()
        or not ast.get_docstring(ast.parse(init.read_text("utf-8")))
    ]
    assert not silent, f"folders without an __init__.py that opens with a docstring: {silent}"


def test_every_module_opens_with_a_docstring() -> None:
    modules = [path for folder in packages() for path in sorted(folder.glob("*.py"))]
    silent = [
        str(p.relative_to(ROOT)) for p in modules if not ast.get_docstring(ast.parse(p.read_text("utf-8")))
    ]
    assert not silent, silent


def test_no_module_is_longer_than_one_idea() -> None:
    python = [path for path in tracked() if path.suffix == ".py"]
    lines = {str(path.relative_to(ROOT)): len(path.read_text("utf-8").splitlines()) for path in python}
    long = {name: count for name, count in lines.items() if count > LONGEST_MODULE}
    assert python
    assert not long, f"look for the second idea in {long}"


def test_the_wheel_ships_the_type_marker_and_nothing_but_the_framework(tmp_path: Path) -> None:
    from hatchling.builders.wheel import WheelBuilder

    (wheel,) = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    names = zipfile.ZipFile(wheel).namelist()
    assert "tailrace/py.typed" in names
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"tailrace"}
    templates = {path for path in tracked() if FRAMEWORK / "projects" in path.parents}
    assert {str(path.relative_to(FRAMEWORK.parent)) for path in templates} <= {*names}, "also hidden files"


def test_locks_pin_every_requirement_by_hash() -> None:
    locks = sorted((ROOT / "requirements").glob("*.txt"))
    assert locks
    for lock in locks:
        text = re.sub(r"#.*", "", lock.read_text("utf-8")).replace("\\\n", " ")
        for requirement in filter(None, map(str.strip, text.splitlines())):
            assert re.match(r"[a-z0-9-]+==\S+ ", requirement), f"{lock.name}: not pinned: {requirement[:80]}"
            assert "--hash=sha256:" in requirement, f"{lock.name}: no hash: {requirement[:80]}"


def test_the_locks_agree_so_that_one_environment_holds_them_all() -> None:
    pins: dict[str, set[str]] = {}
    for lock in (ROOT / "requirements").glob("*.txt"):
        # A line may end in a marker: the same package may have one pin for each Python, in every lock alike.
        found = re.findall(
            r"^([a-z0-9-]+)==([^ ;]+)( ; [^\\\n]+)?", lock.read_text("utf-8"), flags=re.MULTILINE
        )
        for name, version, marker in found:
            pins.setdefault(name + marker, set()).add(version)
    assert {name: versions for name, versions in pins.items() if len(versions) > 1} == {}


def test_an_ignored_type_error_names_its_rule_and_its_reason() -> None:
    # The ignore with its rule in brackets, then `# reason`; the reason may follow one ignore for each checker.
    ignore = re.compile(r"#\s*(?:type|pyright):\s*ignore(?P<rule>\[[\w, -]+\])?(?P<rest>.*)$")
    bare = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for top in ("framework", "services", "schemas")
        for path in sorted((ROOT / top).rglob("*.py"))
        for number, line in enumerate(path.read_text("utf-8").splitlines(), 1)
        if (match := ignore.search(line))
        and not (match["rule"] and re.search(r"#\s*\w+\s+\w+", last_of(match["rest"])))
    ]
    assert not bare, "\n".join(bare)


def last_of(rest: str) -> str:
    """What follows the last ignore of a line."""
    return re.sub(r".*#\s*(?:type|pyright):\s*ignore\[[\w, -]+\]", "", rest)


def test_what_threads_decode_has_a_decoder_that_was_made_at_import() -> None:
    """Two threads that are the first to decode a struct of msgspec end the process by SIGSEGV."""
    rooms = (
        *("core", "http", "log", "runtime", "serve"),
        *("history/dead_letters", "history/reading", "history/status"),
    )
    files = [one for room in rooms for one in (FRAMEWORK / room).rglob("*.py")]
    files += [*(FRAMEWORK / "state" / "snapshots").glob("*.py"), FRAMEWORK / "lab" / "versions.py"]
    files += [FRAMEWORK / "history" / "rebuilding" / f"{name}.py" for name in ("job", "request", "results")]
    found = [
        f"{file.relative_to(FRAMEWORK)}:{number}"
        for file in files
        for number, line in enumerate(file.read_text("utf-8").splitlines(), 1)
        if re.search(r"\bdecode\(.*\btype=\w*[A-Z]", line)
    ]
    assert not found, "\n".join(found)
