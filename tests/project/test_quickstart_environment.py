"""Quickstart's defaults, and the settings that it leaves alone."""

from __future__ import annotations

import os
import socket
import stat

import pytest

from ojs_project import beside
from ojs_project.quickstart_environment import Address, Unusable, prepare


@pytest.fixture
def environ(tmp_path) -> dict[str, str]:
    return {"DJANGO_DATA_DIR": str(tmp_path / "data")}


def test_on_this_machine_it_is_open_and_in_debug(environ):
    prepare([], environ)

    assert (environ["DJANGO_DEBUG"], environ["OJS_ALLOW_ANONYMOUS"]) == ("1", "1")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7"])
def test_on_any_other_address_it_is_neither(environ, host):
    prepare(["--host", host], environ)

    assert environ["DJANGO_DEBUG"] == "0"
    assert "OJS_ALLOW_ANONYMOUS" not in environ


@pytest.mark.parametrize("host", ["127.0.0.1", "127.8.9.10", "localhost", "::1"])
def test_what_only_this_machine_reaches(host):
    assert Address.find(host, 8000).is_local


def test_without_debug_anonymous_access_is_not_allowed(environ):
    # `check` refuses an open server outside DEBUG.
    prepare([], environ | {"DJANGO_DEBUG": "0"})

    assert "OJS_ALLOW_ANONYMOUS" not in environ


def test_what_is_set_stays(environ):
    given = {
        "DJANGO_DEBUG": "0",
        "OJS_ALLOW_ANONYMOUS": "0",
        "DJANGO_SECRET_KEY": "of-my-own",
        "DATABASE_URL": "sqlite:////somewhere/jobs.sqlite3",
    }
    environ |= given

    prepare([], environ)

    assert {name: environ[name] for name in given} == given


def test_the_option_names_the_database_for_all_processes(environ):
    environ["DATABASE_URL"] = "sqlite:////somewhere/jobs.sqlite3"

    prepare(["--database-url", "postgresql://somebody@there/jobs"], environ)

    assert environ["DATABASE_URL"] == "postgresql://somebody@there/jobs"


def test_the_secret_key_is_random_kept_and_private(environ, tmp_path):
    again, elsewhere = dict(environ), {"DJANGO_DATA_DIR": str(tmp_path / "elsewhere")}

    for each in (environ, again, elsewhere):
        prepare([], each)

    assert len(environ["DJANGO_SECRET_KEY"]) > 50
    assert again["DJANGO_SECRET_KEY"] == environ["DJANGO_SECRET_KEY"]
    assert elsewhere["DJANGO_SECRET_KEY"] != environ["DJANGO_SECRET_KEY"]
    kept = os.stat(tmp_path / "data" / "secret-key")
    assert stat.S_IMODE(kept.st_mode) == 0o600


def test_the_demonstration_gets_through_whatever_names_are_allowed(environ):
    environ["DJANGO_ALLOWED_HOSTS"] = "jobs.example.com"

    prepare(["--host", "0.0.0.0"], environ)

    assert environ["DJANGO_ALLOWED_HOSTS"] == "jobs.example.com,127.0.0.1"


@pytest.mark.parametrize(
    ("arguments", "variables", "says"),
    [
        (["--host", "nowhere.invalid"], {}, "'nowhere.invalid' is not an address"),
        (["--host", ""], {}, "is not an address"),
        (["--host", "0.0.0.0"], {"OJS_ALLOW_ANONYMOUS": "1"}, "would serve everybody"),
        (["--database-url", "somewhere:secret"], {}, "must look like postgresql://"),
        (["--database-url", "mysql://me:secret@host/jobs"], {}, "must look like postgresql://"),
        (["--database-url", "sqlite://:memory:"], {}, "needs a file"),
        ([], {"DJANGO_DEBUG": "maybe"}, "DJANGO_DEBUG must be 1 or 0"),
        ([], {"DJANGO_DATA_DIR": "/proc/nowhere"}, "Cannot write to /proc/nowhere"),
    ],
)
def test_what_cannot_be_done_is_said_in_a_sentence(environ, arguments, variables, says):
    with pytest.raises(Unusable, match=says) as refusal:
        prepare(arguments, environ | variables)

    assert "secret" not in str(refusal.value)


@pytest.mark.parametrize("port", ["0", "65536", "http", "-1", "8000.0"])
def test_a_port_is_a_number_that_can_be_one(environ, capsys, port):
    with pytest.raises(SystemExit):
        prepare([f"--port={port}"], environ)

    assert f"'{port}' is not a number from 1 to 65535" in capsys.readouterr().err


def test_a_taken_port_is_noticed_and_a_free_one_is_not():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        address = Address.find("127.0.0.1", taken.getsockname()[1])
        with pytest.raises(Unusable, match="in use"):
            address.check_free()

    address.check_free()


def test_addresses_are_spelled_as_urls_spell_them():
    assert Address.find("127.0.0.1", 8000).url == "http://127.0.0.1:8000"
    assert Address.find("::1", 8000).url == "http://[::1]:8000"
    # http://0.0.0.0 cannot be opened.
    assert Address.find("0.0.0.0", 8000).url == "http://127.0.0.1:8000"


# Commands beside a running quickstart


def test_a_command_takes_over_what_a_running_quickstart_has_decided(tmp_path):
    mine = {"DJANGO_DATA_DIR": str(tmp_path)}
    decided = mine | {
        "DJANGO_SECRET_KEY": "s",
        "DJANGO_DEBUG": "1",
        "DATABASE_URL": "d",
        "HOME": "h",
    }
    held = beside.be_found(decided)

    beside.join(environ := dict(mine))
    assert environ == {name: text for name, text in decided.items() if name != "HOME"}
    beside.join(environ := mine | {"DATABASE_URL": "another"})
    assert environ["DATABASE_URL"] == "another"
    assert (tmp_path / "quickstart.json").stat().st_mode & 0o077 == 0

    beside.be_gone(held)
    beside.join(environ := dict(mine))
    assert environ == mine


@pytest.mark.parametrize("name", ["DJANGO_SECRET_KEY", "DJANGO_DEBUG"])
def test_who_has_decided_is_left_alone(tmp_path, name):
    mine = {"DJANGO_DATA_DIR": str(tmp_path)}
    held = beside.be_found(mine | {"DJANGO_SECRET_KEY": "s", "DJANGO_DEBUG": "1"})

    beside.join(environ := mine | {name: "0"})

    assert environ == mine | {name: "0"}
    beside.be_gone(held)


def test_what_a_killed_quickstart_has_left_counts_for_nothing(tmp_path):
    mine = {"DJANGO_DATA_DIR": str(tmp_path)}
    held = beside.be_found(mine | {"DJANGO_SECRET_KEY": "s"})
    os.close(held)

    beside.join(environ := dict(mine))

    assert environ == mine


def test_of_two_quickstarts_on_one_folder_the_first_is_found(tmp_path):
    mine = {"DJANGO_DATA_DIR": str(tmp_path)}
    first = beside.be_found(mine | {"DJANGO_SECRET_KEY": "first"})

    assert beside.be_found(mine | {"DJANGO_SECRET_KEY": "second"}) is None

    beside.be_gone(None)
    beside.join(environ := dict(mine))
    assert environ["DJANGO_SECRET_KEY"] == "first"
    beside.be_gone(first)
