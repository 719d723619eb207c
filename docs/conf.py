"""Builds the site out of the Markdown files as they lie in the repository.

The source directory is the repository's root, so a relative link means the same on the site and on
GitHub: `sphinx-build -c docs . docs/_build`.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

sys.path.insert(0, str(Path(__file__).parent))

from site_pages import changelog, navigation, readmes, with_fields

if TYPE_CHECKING:
    from docutils.nodes import Element, TextElement
    from sphinx.addnodes import pending_xref
    from sphinx.application import Sphinx
    from sphinx.environment import BuildEnvironment

project = "Neaptide"
author = "The Neaptide authors"
copyright = author  # noqa: A001 - Sphinx names it so
root_doc = "docs/index"
extensions = ["myst_parser", "sphinx.ext.autodoc"]
include_patterns = [
    "docs/**",
    "plugins/neaptide_plugins/*/README.md",
    "contrib/*/README.md",
    ".github/*.md",
]
exclude_patterns = [
    ".git",
    ".tox",
    ".venv",
    "**/__pycache__",
    "docs/_build",
    "docs/changelog/*.*.md",  # the fragments: the changelog's page takes them in
]
html_theme = "furo"
html_title = "Neaptide"
html_copy_source = False

myst_heading_anchors = 6
myst_links_external_new_tab = False
suppress_warnings = [
    "myst.xref_ambiguous",
    "ref.python",  # the type `bytes` is also the name of attributes
]

default_role = "code"  # docstrings write `name` as Markdown does
autodoc_default_options = {"members": True}
autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_typehints_format = "short"
python_use_unqualified_type_names = True
maximum_signature_line_length = 80

nitpicky = True
nitpick_ignore_regex = [
    # Other projects' types. Their inventories would have to be downloaded at each build.
    ("py:.*", r"(torch|nn|attrs|structlog|collections|contextlib|os|pathlib|weakref)\..*"),
    # Python's own types, and type variables.
    ("py:.*", r"Path|AbstractContextManager|(neaptide\w*\..*\.)?[ACRST]|ParamsT"),
]

_PACKAGES = {"", "neaptide", "neaptide_kernels", "neaptide_toolkit"}
_LISTS = {"docs/changelog/index": changelog, "docs/plugins/index": readmes}


def add_pages(app: Sphinx, docname: str, content: list[str]) -> None:
    """Make the lists of an index page the navigation; list what lies in folders."""
    page = Path(app.env.doc2path(docname))
    if docname in _LISTS:
        content[0] += _LISTS[docname](page.parent)
    if page.name == "index.md":
        content[0] += navigation(content[0])


def format_docstring(
    app: Sphinx, what: str, name: str, obj: object, options: object, lines: list[str]
) -> None:
    """Turn a docstring's sections into fields."""
    del app, what, name, obj, options
    lines[:] = with_fields(lines)


def public_reference(
    app: Sphinx, env: BuildEnvironment, node: pending_xref, contnode: TextElement
) -> Element | None:
    """Resolve a type of Neaptide's by its last name, from whichever module it was imported."""
    target = node.get("reftarget", "")
    module, _, name = target.rpartition(".")
    if node.get("refdomain") != "py" or module.partition(".")[0] not in _PACKAGES:
        return None
    domain = env.domains["py"]
    known = [
        full
        for full, entry in domain.objects.items()
        if full.rpartition(".")[2] == name and not entry.aliased
    ]
    if len(known) != 1:
        return None
    found: Element | None = domain.resolve_xref(
        env, node["refdoc"], app.builder, "obj", known[0], node, contnode
    )
    return found


def setup(app: Sphinx) -> None:
    """Connect them."""
    app.connect("autodoc-process-docstring", format_docstring)
    app.connect("source-read", add_pages)
    app.connect("missing-reference", public_reference)
