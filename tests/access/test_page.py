"""docs/authorization.md matches the table."""

from __future__ import annotations

from pathlib import Path

from django.core.management import call_command

from workers.management.commands.authorization import MARK

PAGE = Path(__file__).resolve().parents[2] / "docs" / "authorization.md"


def test_the_tables_of_the_page_are_what_the_code_says(capsys):
    call_command("authorization")

    printed = capsys.readouterr().out
    assert PAGE.read_text().partition(MARK)[2] == printed, (
        "Run `manage.py authorization --update docs/authorization.md`."
    )


def test_the_page_can_be_brought_up_to_date(tmp_path):
    page = tmp_path / "page.md"
    page.write_text(f"Before.\n{MARK}What was so before.\n")

    call_command("authorization", update=page)

    assert page.read_text() == f"Before.\n{MARK}{PAGE.read_text().partition(MARK)[2]}"
