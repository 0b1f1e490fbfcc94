"""The site that `make docs` builds from the Markdown of this repository, with Sphinx.

The source folder is the repository, so that links from a page to README.md or CHANGELOG.md mean
the same here, on a code host and in an editor.
"""

import sys
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parent), str(Path(__file__).parent.parent)]

project = "OJS for Django"
author = "The django-ojs authors"
root_doc = "docs/index"
include_patterns = ["docs/**", "*.md"]

extensions = ["myst_parser"]
# Links name headings as code hosts do: file.md#a-heading.
myst_heading_anchors = 4
myst_enable_extensions = ["attrs_inline"]

html_theme = "furo"
html_title = project
html_copy_source = False
html_show_sphinx = False
# The front page at the root of the site.
html_extra_path = ["site"]

linkcheck_timeout = 30
linkcheck_ignore = [r"https?://(localhost|127\.0\.0\.1|ojs|jobs\.example\.com)"]


def setup(app: Any) -> None:
    import generate

    generate.write(Path(__file__).parent / "reference")
