"""Puts the OpenAPI document into the wheel; `manage.py openapi` writes it at any other time."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

GENERATE = """
import sys
from pathlib import Path

sys.path.append("docs")

from generate import set_up

set_up()

from workers.openapi.generate import document, written

Path(sys.argv[1]).write_text(written(document()))
"""


class OpenAPI(BuildHookInterface[Any]):
    """Needs what the package needs, and runs in a separate process."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        # An editable install has the code, from which the document is generated.
        if version == "editable":
            return
        self.folder = tempfile.TemporaryDirectory()
        file = Path(self.folder.name) / "openapi.json"
        command = [sys.executable, "-c", GENERATE, str(file)]
        subprocess.run(command, cwd=self.root, check=True)
        build_data["force_include"][str(file)] = "workers/openapi/openapi.json"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        if version != "editable":
            self.folder.cleanup()
