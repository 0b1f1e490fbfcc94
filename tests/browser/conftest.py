"""A real Chromium at a live server: the system's own, found on the path. Both serve every file."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import Client
from pytest_django.live_server_helper import LiveServer

NAMES = ("chromium-headless-shell", "chromium", "chromium-browser", "google-chrome")
"""The first is Chromium without windows: pages take two thirds of the processor time."""
CHROMIUM = next(filter(None, map(shutil.which, NAMES)), "")
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 120_000
"""Milliseconds a page may take on a busy machine."""


# Per package, not per session: Playwright keeps an event loop in this thread, which other tests
# must not find there.
@pytest.fixture(scope="package")
def chromium() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("there is no Chromium: apt-get install chromium-headless-shell")
    playwright = pytest.importorskip("playwright.sync_api")
    # Django mistakes that loop for asynchronous code.
    with pytest.MonkeyPatch.context() as patch, playwright.sync_playwright() as driver:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="package")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    """The live server, under the content security policy that the project sends.

    After the database is set up: otherwise it would use the settings' in-memory database and
    make all its threads share one SQLite connection.
    """
    server = LiveServer("localhost")
    yield server
    server.stop()


@pytest.fixture
def browse(chromium: Any, live_server: LiveServer) -> Iterator[Callable[..., Any]]:
    """Open a page at the live server: `browse(color_scheme="dark")`.

    An error in its console or a violation of the content security policy fails the test.
    """
    contexts: list[Any] = []
    complaints: list[str] = []

    def listen(message: Any) -> None:
        # A browser requests this from every site.
        is_asked_for_by_nobody = message.location["url"].endswith("/favicon.ico")
        if message.type == "error" and not is_asked_for_by_nobody:
            complaints.append(message.text)

    def open_page(**options: Any) -> Any:
        context = chromium.new_context(base_url=live_server.url, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", listen)
        page.on("pageerror", lambda error: complaints.append(str(error)))
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert complaints == []


@pytest.fixture
def log_in(browse: Callable[..., Any], admin_user: Any) -> Callable[..., Any]:
    """Open a page as a logged-in user: an administrator, or the given `user`."""

    def arrive(user: Any = None, **options: Any) -> Any:
        page = browse(**options)
        client = Client()
        client.force_login(user or admin_user)
        name = settings.SESSION_COOKIE_NAME
        cookie = {"name": name, "value": client.cookies[name].value}
        page.context.add_cookies([cookie | {"domain": "localhost", "path": "/"}])
        return page

    return arrive
