"""Settings of the documentation: `make docs` builds it into docs/_build/html."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE / "_ext"), str(HERE.parent / "src")]

import bfn  # noqa: E402

project = "bfn"
author = "the bfn authors"
version = release = bfn.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "docstrings",  # before napoleon, which reads what it leaves
    "sphinx.ext.napoleon",
    "mathml",
]
exclude_patterns = ["_build"]
myst_enable_extensions = ["dollarmath", "deflist", "fieldlist"]
myst_heading_anchors = 3

# Nothing is fetched from elsewhere, neither here nor in the reader's browser.
html_math_renderer = "mathml"
html_theme = "furo"
html_title = "bfn"
html_static_path = ["_static"]
html_css_files = ["bfn.css"]
html_copy_source = False
html_show_sourcelink = False
html_show_copyright = False

autodoc_member_order = "bysource"
autodoc_typehints = "signature"
autodoc_preserve_defaults = True
maximum_signature_line_length = 80
python_use_unqualified_type_names = True
napoleon_numpy_docstring = False
