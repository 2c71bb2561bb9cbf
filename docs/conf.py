"""How Sphinx makes the site of these pages and of the docstrings: ``make docs``, into ``out/docs``."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from docutils import nodes
from sphinx.pycode import ModuleAnalyzer

if TYPE_CHECKING:
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "Tailrace"
author = "the Tailrace authors"
extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.viewcode"]
html_theme = "furo"
html_title = "Tailrace"
html_copy_source = False
exclude_patterns = ["_build"]

myst_heading_anchors = 4  # links of the form page.md#a-heading, as on a code host
suppress_warnings = [
    "myst.xref_missing",  # links out of docs/; tests/test_documentation.py checks every link
    "misc.highlighting_failure",  # what a terminal shows need not be of the language of its block
    "toc.not_included",  # docs/README.md lists every page: the same test checks that
]

autodoc_default_options = {"members": True, "member-order": "bysource"}
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
autodoc_typehints_format = "short"
python_maximum_signature_line_length = 90

MADE_BY_TAILRACE = (
    *("Actor", "AppView", "Context", "Fault", "HarnessSnapshot"),
    *("ListState", "MapState", "Metrics", "Stream", "Topic"),
)
"""Classes that nobody else constructs: their signature is left out."""
PACKAGES = {"tailrace": "api/declaring", "tailrace.testing": "api/testing", "tailrace.spark": "api/spark"}
"""The packages whose names are public, each with the page for names that have no place yet."""


def add_other_names(app: Sphinx, page: str, source: list[str]) -> None:
    """Give public names that stand in no page of the reference a place at the end of the page of their package."""
    pages = "".join(path.read_text("utf-8") for path in Path(app.srcdir, "api").glob("*.rst"))
    placed = set(re.findall(r"^\.\. auto\w+:: (\S+)$", pages, re.MULTILINE))
    for package, own in PACKAGES.items():
        module = importlib.import_module(package)
        others = [name for name in module.__all__ if f"{package}.{name}" not in placed]
        if page == own and others:
            kinds = [(name, directive_of(getattr(module, name))) for name in others]
            entries = [f".. {kind}:: {package}.{name}\n" for name, kind in kinds]
            source[0] += "\n".join(["", "Other names", "-----------", "", *entries])


def directive_of(value: object) -> str:
    """How autodoc is asked for a name."""
    if inspect.isclass(value):
        return "autoexception" if issubclass(value, BaseException) else "autoclass"
    return "autofunction" if inspect.isfunction(value) else "autodata"


def source_of(package: str, name: str) -> str:
    """The module that a package imports a public name from."""
    init = inspect.getsource(importlib.import_module(package))
    for node in ast.walk(ast.parse(init)):
        if isinstance(node, ast.ImportFrom) and node.module and name in {one.name for one in node.names}:
            return node.module
    return package


def document_constant(
    app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]
) -> None:
    """Give a public constant the docstring that stands below it, in the module that it is imported from."""
    package, _, constant = name.rpartition(".")
    if what == "data" and package in PACKAGES:
        found = ModuleAnalyzer.for_module(source_of(package, constant)).find_attr_docs().get(("", constant))
        lines[:] = found or []


def leave_out_signature(
    app: Sphinx, what: str, name: str, value: object, options: object, signature: str | None, returns: str
) -> tuple[str, None] | None:
    """Show no constructor where users do not call it."""
    made = what == "exception" or (what == "class" and name.rpartition(".")[2] in MADE_BY_TAILRACE)
    return ("", None) if made and signature else None


def list_errors(app: Sphinx, what: str, name: str, value: object, options: object, lines: list[str]) -> None:
    """Turn a section ``Raises:`` into fields. Napoleon would also take a colon in a sentence for the end of a type."""
    if "Raises:" in lines:
        first = lines.index("Raises:") + 1
        after = next((at for at in range(first, len(lines)) if lines[at][:1].strip()), len(lines))
        section = [re.sub(r"^    (\w+): ", r":raises \1: ", line) for line in lines[first:after]]
        lines[first - 1 : after] = ["", *section]


def link_to_public_name(
    app: Sphinx, environment: BuildEnvironment, node: Any, text: nodes.Element
) -> nodes.Element | None:
    """Link a type in a signature to its public name: there it is written as its own module imports it."""
    domain = environment.domains["py"]
    name = str(node.get("reftarget", "")).rpartition(".")[2]
    if node.get("refdomain") != "py":
        return None
    for package in PACKAGES:
        if f"{package}.{name}" in domain.data["objects"]:
            page = node.get("refdoc", "")
            return domain.resolve_xref(environment, page, app.builder, "obj", f"{package}.{name}", node, text)
    return None


def setup(app: Sphinx) -> None:
    """Called by Sphinx."""
    app.connect("source-read", add_other_names)
    app.connect("autodoc-process-docstring", document_constant)
    app.connect("autodoc-process-docstring", list_errors)
    app.connect("autodoc-process-signature", leave_out_signature)
    app.connect("missing-reference", link_to_public_name)
