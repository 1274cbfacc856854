"""How Sphinx builds the documentation: ``sphinx-build -W -c docs . build/docs``.

The source is the repository's root, so that a link between documents, results and code is the same on every reader.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent / "extensions"))

from harness import __version__

project = "harness"
author = "The gradient-leakage-harness project"
project_copyright = author
release = version = __version__

extensions = ["myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "command_reference", "printed_tables"]
root_doc = "docs/index"
include_patterns = ["docs/*.md", "benchmarks/results/*.md", "examples/README.md", "CONTRIBUTING.md", "CHANGELOG.md"]
exclude_patterns = [
    ".*",
    "build",
    "docs/root",
    "runs",
    "nightly",
    "tests",
    "harness",
    "attacks",
    "defenses",
    "datasets",
    "reports",
]
# Anchors for headings, as GitHub makes them; a link to one that is not there is a warning, and so an error.
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]

autodoc_member_order = "bysource"
autodoc_typehints = "none"
napoleon_use_rtype = False

html_theme = "pydata_sphinx_theme"
html_title = f"harness {release}"
html_extra_path = ["root"]  # its first page leads to ours
html_copy_source = False
html_show_sourcelink = False
html_show_sphinx = False
templates_path = ["templates"]
html_sidebars = {"**": ["contents.html"]}
html_theme_options = {
    "navbar_center": [],
    "show_prev_next": False,
    "navigation_with_keys": False,
    "footer_start": ["copyright"],
    "footer_end": [],
}
