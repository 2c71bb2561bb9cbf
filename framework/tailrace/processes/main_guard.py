"""Whether a script may start processes: each of them imports the script again.

A process that is started with "spawn" imports the main script of its parent. So the place that starts processes must be under
``if __name__ == "__main__"``; otherwise multiprocessing ends the child with an error that does not name the cause.
"""

from __future__ import annotations

import ast
import inspect
from pathlib import Path
from typing import Final

from tailrace.core.errors import UsageError

_GUARD: Final = 'Put the call under if __name__ == "__main__".'


def check_guarded(what: str) -> None:
    """Check that an import of the calling script does not get to this place. ``what`` happens here: "app.run is called".
    Raises UsageError: the import would get here.
    """
    frame = inspect.currentframe()
    while frame is not None and frame.f_code.co_name != "<module>":
        frame = frame.f_back
    if frame is None:
        return
    name = frame.f_globals.get("__name__")
    if name != "__main__":
        spec = frame.f_globals.get("__spec__")
        if name != "__mp_main__" and not getattr(spec, "_initializing", False):
            return  # not called during an import
        raise UsageError(f"{what} while the module {name!r} is imported", hint=_GUARD)
    file = frame.f_globals.get("__file__")
    if file is None or not Path(file).is_file():
        return  # an interactive session, or a program in an archive
    if not any(
        node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)
        for node in ast.walk(ast.parse(Path(file).read_bytes()))
        if isinstance(node, ast.If | ast.IfExp) and "__name__" in ast.unparse(node.test)
    ):
        raise UsageError(
            f"{what} at {file}:{frame.f_lineno} whenever the script is imported, as by each process that it starts",
            hint=_GUARD,
        )
