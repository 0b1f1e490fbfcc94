"""Exports the filtered list of jobs as CSV, row by row, whatever its length."""

from __future__ import annotations

import csv
import json
from collections.abc import Iterator
from typing import Any

from django.db.models import QuerySet
from django.http import StreamingHttpResponse

from ..access.redaction import redact

COLUMNS = (
    "id",
    "type",
    "queue",
    "state",
    "attempt",
    "max_attempts",
    "priority",
    "created_at",
    "enqueued_at",
    "started_at",
    "finished_at",
    "reserved_by",
    "finished_by",
    "tags",
    "args",
)
CHUNK = 1000
FORMULA = ("=", "+", "-", "@", "\t", "\r")
"""First characters of what a spreadsheet would execute."""


class _Echo:
    """A file that returns what is written to it."""

    def write(self, line: str) -> str:
        return line


def _cell(value: Any, is_redacted: bool) -> str:
    if value is None:
        return ""
    if isinstance(value, list | dict):
        return json.dumps(redact(value) if is_redacted else value, ensure_ascii=False)
    text = value.isoformat() if hasattr(value, "isoformat") else str(value)
    is_number = isinstance(value, int)
    return f"'{text}" if text.startswith(FORMULA) and not is_number else text


def lines(jobs: QuerySet[Any], is_redacted: bool) -> Iterator[str]:
    writer: Any = csv.writer(_Echo())
    yield writer.writerow(COLUMNS)
    rows = jobs.defer(None).values_list(*COLUMNS)
    for row in rows.iterator(chunk_size=CHUNK):
        yield writer.writerow([_cell(value, is_redacted) for value in row])


def as_csv(jobs: QuerySet[Any], name: str, *, is_redacted: bool) -> StreamingHttpResponse:
    """Respond with the jobs as a file, read while it is being sent."""
    response = StreamingHttpResponse(lines(jobs, is_redacted), content_type="text/csv")
    response["Content-Disposition"] = f'attachment; filename="{name}.csv"'
    return response
