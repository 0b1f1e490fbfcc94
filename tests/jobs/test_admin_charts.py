"""Charts: the drawing, and the table behind it."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from django.utils import timezone

from jobs.admin.charts import Chart, Line, number, seconds


def chart(*values, unit=number):
    now = timezone.now()
    moments = [now + n * timedelta(minutes=1) for n in range(len(values))]
    return Chart("key", "Title", moments, [Line("done", "main", values)], unit)


def paths(drawn):
    return re.findall(r'class="([^"]+)" d="([^"]+)"', str(drawn.svg()))


def test_a_point_by_itself_is_a_dot_and_neighbours_are_a_line():
    found = dict(paths(chart(1, None, 1, 1, None, 1)))

    assert found["ojs-line ojs-line-main"].count("M") == 1
    assert found["ojs-line ojs-line-main"].count("L") == 1
    assert found["ojs-line ojs-line-main ojs-dot"].count("M") == 2


def test_the_table_has_every_point_of_the_lines_the_newest_first():
    rows = chart(*range(96)).rows()

    assert [cells for _, cells in rows][:2] == [["95"], ["94"]]
    assert len(rows) == 96


@pytest.mark.parametrize(
    ("highest", "top", "written"),
    [
        (0.03, 0.05, "50 ms"),
        (0.9, 1, "1 s"),
        (70, 120, "2 min"),
        (100, 120, "2 min"),
        (1900, 3600, "1 h"),
        (50_000, 86_400, "1 d"),
        (400_000, 432_000, "5 d"),
    ],
)
def test_the_axis_of_durations_ends_at_one_that_is_round(highest, top, written):
    drawn = chart(highest, unit=seconds)

    assert drawn.top == top
    assert drawn.unit(drawn.top) == written
