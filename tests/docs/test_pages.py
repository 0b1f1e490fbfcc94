"""The documentation holds together: links lead somewhere, and every page is found."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.once import once_is_enough

from . import pages
from .pages import PAGES, ROOT

pytestmark = once_is_enough

GENERATED = {"settings", "commands", "http", "signals", "events", "metrics", "python"}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_every_link_within_the_repository_leads_somewhere(page):
    for link in pages.links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if target.parent == ROOT / "docs" / "reference":
            assert target.stem in GENERATED, link
            continue
        assert target.exists(), link
        if anchor and target.suffix == ".md":
            assert anchor in pages.anchors(target), link


def test_every_page_is_in_the_navigation():
    index = ROOT / "docs" / "index.md"
    named = {
        (index.parent / f"{line.strip()}.md").resolve()
        for block in pages.blocks(index)
        for line in block.text.splitlines()
        if line.strip() and not line.startswith(":")
    }
    generated = {ROOT / "docs" / "reference" / f"{name}.md" for name in GENERATED}

    assert named == {*PAGES, *generated} - {index}


@pytest.mark.slow
def test_the_reference_pages_are_written_from_the_code(tmp_path):
    script = "import sys, generate, pathlib; generate.write(pathlib.Path(sys.argv[1]))"
    path = os.pathsep.join([str(ROOT / "docs"), str(ROOT)])

    subprocess.run(
        [sys.executable, "-c", script, str(tmp_path)],
        env={"PATH": os.environ["PATH"], "PYTHONPATH": path},
        check=True,
    )

    text = {file.stem: file.read_text() for file in tmp_path.glob("*.md")}
    assert text.keys() == GENERATED
    assert "| `HEARTBEAT_TIMEOUT` | 30 s |" in text["settings"]
    assert "## runjobworker" in text["commands"] and "| `--queues` |" in text["commands"]
    assert "| `POST /ojs/v1/jobs` |" in text["http"]
    assert "| `jobs_completed` | `job_ids`" in text["signals"]
    assert (
        "| `job.completed` | It was acknowledged. `duration_ms`. | `jobs.signals.jobs_comp"
        in (text["events"])
    )
    assert "| `ojs_job_enqueued_total` | counter | `queue`, `type` |" in text["metrics"]
    assert "### jobs.enqueue\n" in text["python"] and "* `InvalidTransition`: " in text["python"]


def test_the_table_of_signals_is_what_the_code_says(monkeypatch):
    import jobs.signals
    import workers.signals

    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    from generate import signals_table

    page = (ROOT / "docs" / "django.md").read_text()
    written = page.partition("<!-- signals: ")[2].partition("-->\n")[2]
    tables = written.partition("\n<!-- end of signals -->")[0]

    assert tables == "\n\n".join(map(signals_table, (jobs.signals, workers.signals)))


def test_every_claim_of_the_comparison_leads_to_what_shows_it():
    lines = (ROOT / "docs" / "why.md").read_text().splitlines()
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines
        if line.startswith("| ") and not line.startswith("| |")
    ]

    assert len(rows) > 20
    assert {len(row) for row in rows} == {8}
    assert [what for what, ours, *_ in rows if "](" not in ours] == []
