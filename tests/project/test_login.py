"""Guessing passwords at the admin's login is slowed down, only for the client that guesses."""

from __future__ import annotations

import re
from types import SimpleNamespace

import httpx
import pytest

from ojs_project.addresses import client_address, client_name
from tests import processes
from tests.once import once_is_enough

pytestmark = once_is_enough

PASSWORD = "a password of some length"
MOST = 10
OPERATORS = f"""
from django.contrib.auth.models import User
for name in ("ada", "grace"):
    User.objects.create_superuser(name, password={PASSWORD!r})
"""


class Login:
    """The login page, used by operators at several addresses."""

    def __init__(self, url: str) -> None:
        self.url = f"{url}/admin/login/?next=/admin/"

    def try_out(self, username: str, password: str, address: str = "192.0.2.1") -> httpx.Response:
        # A proxy appends its entry; anything before it may come from the client.
        headers = {"X-Forwarded-For": f"10.1.1.1, {address}"}
        with httpx.Client(headers=headers, timeout=processes.PATIENCE, trust_env=False) as browser:
            form = browser.get(self.url).text
            token = re.search(r'name="csrfmiddlewaretoken" value="(\w+)"', form)
            assert token is not None
            answers = {
                "csrfmiddlewaretoken": token[1],
                "username": username,
                "password": password,
            }
            return browser.post(self.url, data=answers)


@pytest.fixture
def site(database_url, tmp_path):
    """A server behind a proxy, with two operators: its login page, and its environment."""
    with processes.own_database(database_url, tmp_path) as url:
        environment = processes.environment(url) | {"DJANGO_PROXIES": "1"}
        with processes.manage(tmp_path, environment, "shell", "-c", OPERATORS) as made:
            assert made.wait() == 0, made.output
        with processes.server(tmp_path, environment) as api:
            yield Login(api.url), environment


# Each attempt costs a password hash, deliberately.
@pytest.mark.slow
def test_guessing_a_password_locks_out_only_the_guesser(site, tmp_path):
    login, environment = site
    wrong = [login.try_out("ada", f"guess {number}") for number in range(MOST)]
    refused = login.try_out("ada", PASSWORD)

    # The last attempt already gets the message.
    assert [answer.status_code for answer in wrong] == [200] * (MOST - 1) + [429]
    assert refused.status_code == 429
    assert "Too many attempts" in refused.text
    assert "Wait 10 minutes" in refused.text
    assert refused.headers["Content-Security-Policy"]
    # A colleague at the same address, and the same operator at another one.
    assert login.try_out("grace", PASSWORD).status_code == 302
    assert login.try_out("ada", PASSWORD, address="192.0.2.2").status_code == 302
    assert login.try_out("ada", PASSWORD).status_code == 429
    with processes.manage(tmp_path, environment, "axes_reset") as reset:
        assert reset.wait() == 0, reset.output
    assert login.try_out("ada", PASSWORD).status_code == 302


@pytest.mark.parametrize("source", ["credentials", "form"])
def test_of_a_long_name_the_beginning_is_recorded(source):
    typed = {"username": "x" * 5000}
    request = SimpleNamespace(POST=typed if source == "form" else {})

    name = client_name(request, typed if source == "credentials" else None)

    assert name == "x" * 255
    assert client_name(SimpleNamespace(POST={})) is None


@pytest.mark.parametrize(
    ("proxies", "forwarded", "address"),
    [
        (0, "203.0.113.9", "192.0.2.1"),
        (1, "203.0.113.9", "203.0.113.9"),
        (1, "10.0.0.1, 203.0.113.9", "203.0.113.9"),
        (2, "10.0.0.1, 203.0.113.9, 198.51.100.7", "203.0.113.9"),
        (2, "203.0.113.9", "192.0.2.1"),
        (1, "", "192.0.2.1"),
        (1, "2001:db8:1:2:3:4:5:6", "2001:db8:1:2::"),
        (1, "::ffff:203.0.113.9", "203.0.113.9"),
        (1, "somewhere", None),
    ],
)
def test_the_address_is_the_one_that_our_own_proxy_saw(settings, proxies, forwarded, address):
    settings.OJS = settings.OJS | {"PROXIES": proxies}
    meta = {"REMOTE_ADDR": "192.0.2.1", "HTTP_X_FORWARDED_FOR": forwarded}

    assert client_address(SimpleNamespace(META=meta)) == address
