"""Durations, times and places as the admin shows them."""

from __future__ import annotations

import re
from datetime import timedelta
from pathlib import Path

import pytest
from django.contrib.staticfiles import finders

from jobs.admin import display
from tests.factories import ago, ahead
from tests.once import once_is_enough


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (-5, "0 s"),
        (0.9, "0 s"),
        (59, "59 s"),
        (60, "1 min"),
        (260, "4 min 20 s"),
        (7_500, "2 h 5 min"),
        (86_400, "1 d"),
        (273_600, "3 d 4 h"),
    ],
)
def test_a_span_is_said_in_its_two_largest_units(seconds, said):
    assert display.span(timedelta(seconds=seconds)) == said


def test_a_short_configured_length_is_said_exactly():
    assert display.length(timedelta(milliseconds=1500)) == "1.5 s"
    assert display.length(timedelta(minutes=30)) == "30 min"
    assert display.length(None) == display.NOTHING


def test_a_moment_is_past_or_to_come():
    assert display.distance(ago(7290)) == "2 h 1 min ago"
    assert display.distance(ahead(7290)) == "in 2 h 1 min"


def test_what_workers_and_clients_say_is_escaped():
    script = "<script>alert(1)</script>"

    for shown in (
        display.chip("x", script),
        display.chips([script]),
        display.code(script),
        display.json_block({"a": script}),
        display.worker_link("admin", script),
    ):
        assert "<script>" not in shown


@pytest.mark.parametrize("key", ["plain", "a/b_c", "ä é 漢字", "50%25?x#y;z=1&'\"", "~!*()|^{}`"])
def test_the_addresses_of_many_pages_are_those_of_each(key):
    addresses = display.admin_urls("admin", "ojs_jobs_queue", "change")

    assert addresses(key) == display.admin_url("admin", "ojs_jobs_queue", "change", key) != ""
    assert display.admin_urls("admin", "ojs_jobs_nonsense", "change")(key) == ""


def test_where_a_model_is_not_registered_a_name_stands_without_a_link():
    assert display.admin_url("admin", "ojs_jobs_nonsense", "change", "x") == ""
    assert display.link("", "plain") == "plain"


@once_is_enough
def test_colours_are_there_in_a_theme_without_djangos_variables():
    """As django-unfold is, which replaces Django's style sheets."""
    sheets = [Path(finders.find(f"ojs/{name}.css")).read_text() for name in ("admin", "dashboard")]
    own = set(re.findall(r"^:where\(:root\) \{(.*?)^\}", sheets[0], re.MULTILINE | re.DOTALL))
    defined = set(re.findall(r"(--[a-z-]+):", "".join(own)))
    used = {name for sheet in sheets for name in re.findall(r"var\((--[a-z-]+)\)", sheet)}

    assert used - defined == {name for name in used if name.startswith(("--ojs-", "--cell"))}
