"""How Sphinx builds the pages (`make docs`): nothing is fetched from the network, a warning is an error."""

import sys
from pathlib import Path

from graphfed import __version__

sys.path.insert(0, str(Path(__file__).parent / "_ext"))

project = "graphfed"
author = "The graphfed developers"
project_copyright = author
version = release = __version__

extensions = [
    "myst_nb",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx_copybutton",
    "sphinx_gallery.gen_gallery",
    "from_the_program",
    "flow_picture",
    "records",
    "verdicts",
    "example_notebooks",
]
exclude_patterns = [
    "_build",
    "tutorial",
    "_tutorial/index.rst",
    "_tutorial/*.ipynb",
    "_tutorial/sg_execution_times.rst",
    "sg_execution_times.rst",
]
myst_enable_extensions = ["dollarmath", "substitution"]
# `make notebooks` has executed the notebooks; a build shows their outputs.
nb_execution_mode = "off"
html_math_renderer = "mathml"
html_theme = "furo"
html_title = f"graphfed {version}"
html_show_copyright = False
html_static_path = ["_static"]
html_css_files = ["site.css"]

# Every heading can be linked to; a link to a file of the repository that is no page stays a plain link.
myst_heading_anchors = 3
suppress_warnings = ["config.cache"]

autodoc_typehints = "none"  # the docstrings give types and shapes
autodoc_member_order = "bysource"
default_role = "code"
smartquotes = False

# A copy has no prompts, and of a block with prompts only the commands.
copybutton_prompt_text = r"\$ |>>> |\.\.\. "
copybutton_prompt_is_regexp = True

sphinx_gallery_conf = {
    "examples_dirs": "tutorial",
    "gallery_dirs": "_tutorial",
    "filename_pattern": r"\.py$",
    # The script may be as it was while graphfed is not.
    "run_stale_examples": True,
    "download_all_examples": False,
    "show_memory": False,
    "min_reported_time": 1e9,
    "abort_on_example_error": True,
    "default_thumb_file": None,
}
