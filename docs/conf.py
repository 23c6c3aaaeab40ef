"""The documentation site: `make docs` builds it."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent), str(HERE / "_ext")]

import pybeam  # noqa: E402

project = "pybeam"
author = "the pybeam authors"
project_copyright = author
release = version = pybeam.__version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "command_line",
    "measured",
    "published",
    "public_names",
]
exclude_patterns = ["_build"]

highlight_language = "text"  # of blocks that name none
myst_heading_anchors = 4
myst_enable_extensions = ["substitution"]
myst_substitutions = {"version": pybeam.__version__}
# notebooks are shown with the outputs that they were saved with; `make docs` runs them beforehand
nb_execution_mode = "off"

autodoc_member_order = "bysource"
# large, and not needed to read signatures
autodoc_mock_imports = ["pyarrow", "ray"]
autodoc_typehints_format = "short"
napoleon_use_rtype = False
napoleon_custom_sections = [("Options", "params_style")]
python_use_unqualified_type_names = True
maximum_signature_line_length = 88
# `name` in a docstring is a link where the name is public, and code elsewhere
default_role = "py:obj"

nitpicky = True
nitpick_ignore_regex = [("py:obj", ".*"), ("py:class", ".*")]

html_theme = "furo"
html_title = f"pybeam {release}"
html_static_path = ["_static"]
html_css_files = ["pybeam.css"]
html_js_files = ["scrolls.js", "versions.js"]
templates_path = ["_templates"]
html_sidebars = {
    "**": [
        "sidebar/brand.html",
        "sidebar/search.html",
        "sidebar/versions.html",
        "sidebar/scroll-start.html",
        "sidebar/navigation.html",
        "sidebar/scroll-end.html",
    ]
}
html_theme_options = {
    "source_repository": "https://github.com/pybeam-search/pybeam/",
    "source_branch": f"v{release}",
    "source_directory": "docs/",
    "top_of_page_buttons": ["view"],
}
html_show_sphinx = False
html_copy_source = False

linkcheck_timeout = 20
linkcheck_retries = 2


def join_names(*event: Any) -> None:
    """Put the names of arguments that share a meaning on one line: napoleon reads a line alone."""
    lines = event[-1]
    lines[:] = re.sub(r"(?<=,)\n +(?=(?:\w+, )*\w+(?:,\n|: ))", " ", "\n".join(lines)).split("\n")


def setup(app: Any) -> None:
    # before napoleon
    app.connect("autodoc-process-docstring", join_names, priority=400)
