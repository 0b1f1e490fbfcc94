"""docs/authorization.md says what the table says."""

from __future__ import annotations

from pathlib import Path

from django.core.management import call_command

PAGE = Path(__file__).resolve().parents[2] / "docs" / "authorization.md"
MARK = "<!-- The tables are printed by `manage.py authorization`. -->\n"


def test_the_tables_of_the_page_are_what_the_code_says(capsys):
    call_command("authorization")

    printed = capsys.readouterr().out
    assert PAGE.read_text().partition(MARK)[2] == printed, "Run `manage.py authorization`."
