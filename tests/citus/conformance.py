"""The public conformance cases, against a server whose cell is distributed."""

from __future__ import annotations

from pathlib import Path

from tests.conformance.test_public_cases import SUITES, UNPASSABLE, verdicts
from tests.processes import Api


def conformance(api: Api, folder: Path) -> bool:
    """Return whether every case passes that can; without the cases, there is nothing to fail."""
    if not (SUITES / "run_cases.py").exists():
        print(f"The public conformance cases are not in {SUITES}.")
        return True
    suites = sorted(path for path in (SUITES / "suites").iterdir() if path.is_dir())
    cases = sum(1 for _ in (SUITES / "suites").rglob("*.json"))
    failed: dict[str, list[str]] = {}
    for suite in suites:
        failed |= verdicts(api, folder, suite.name)
    print(f"Conformance: {cases - len(failed)} of {cases} cases passed.")
    for case, failures in sorted(failed.items()):
        known = " (no server can pass it)" if case in UNPASSABLE else ""
        print(f"  {case}{known}: {str(failures)[:300]}")
    return failed.keys() <= UNPASSABLE
