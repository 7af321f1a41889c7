"""The documentation site: `make docs` builds it in build/docs, without a network."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import workbench  # noqa: E402

project = "GPU Energy Workbench"
author = "the project's developers"
project_copyright = "2026, the project's developers. Licensed under Apache-2.0"
version = release = workbench.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx_copybutton"]
exclude_patterns = ["**/.ipynb_checkpoints"]
highlight_language = "default"
nitpicky = False

# Markdown: headings are anchors, and paths of this repository's files stay text.
myst_enable_extensions = ["deflist", "colon_fence"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # tests execute the notebooks; their outputs are stored
nb_render_markdown_format = "myst"
nb_ipywidgets_js: dict[str, object] = {}  # the pictures are SVG; nothing comes from another site
nb_merge_streams = True
suppress_warnings = ["mystnb.unknown_mime_type"]  # widgets, whose picture is shown in their place

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
napoleon_google_docstring = True
napoleon_numpy_docstring = False

html_context = {"default_mode": "auto"}
html_theme = "pydata_sphinx_theme"
html_title = "GPU Energy Workbench"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sourcelink = False
html_copy_source = False
html_theme_options = {
    "logo": {"text": f"GPU Energy Workbench {version}"},
    "show_prev_next": True,
    "header_links_before_dropdown": 6,
    "navbar_align": "left",
    "navbar_end": ["theme-switcher"],
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "default",
    "pygments_dark_style": "github-dark",
}
copybutton_prompt_text = "$ "


def setup(app):
    """What comes from the code: reference pages and the gallery."""
    from site_parts import add_to

    add_to(app)
