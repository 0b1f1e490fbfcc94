"""A real Chromium at a live server: the system's own, found on the path."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from django.conf import settings
from django.test import override_settings
from pytest_django.live_server_helper import LiveServer

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), ""
)
ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE = 20_000
"""Milliseconds a page may take on a busy machine."""


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    if not CHROMIUM:
        pytest.skip("there is no Chromium: apt-get install chromium")
    playwright = pytest.importorskip("playwright.sync_api")
    # Playwright keeps an event loop in this thread, which Django takes for asynchronous code.
    with pytest.MonkeyPatch.context() as patch, playwright.sync_playwright() as driver:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        yield browser
        browser.close()


@pytest.fixture(scope="module")
def live_server(django_db_setup: None) -> Iterator[LiveServer]:
    """The live server under a strict content security policy.

    After the database is set up: otherwise it would meet the settings' in-memory database and
    make all its threads share one SQLite connection.
    """
    # A server loads its middleware when it starts.
    with override_settings(MIDDLEWARE=[*settings.MIDDLEWARE, "tests.browser.csp.strict"]):
        server = LiveServer("localhost")
    yield server
    server.stop()


@pytest.fixture
def browse(chromium: Any, live_server: LiveServer) -> Iterator[Callable[..., Any]]:
    """Open a page at the live server: `browse(color_scheme="dark")`.

    A violation of the content security policy fails the test.
    """
    contexts: list[Any] = []
    violations: list[str] = []

    def listen(message: Any) -> None:
        if "Content Security Policy" in message.text:
            violations.append(message.text)

    def open_page(**options: Any) -> Any:
        context = chromium.new_context(base_url=live_server.url, **options)
        context.set_default_timeout(PATIENCE)
        contexts.append(context)
        page = context.new_page()
        page.on("console", listen)
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert violations == []


@pytest.fixture
def log_in(browse: Callable[..., Any], admin_user: Any) -> Callable[..., Any]:
    """Open a page, log in through the form, and arrive at the admin."""

    def arrive(**options: Any) -> Any:
        page = browse(**options)
        page.goto("/admin/")
        page.fill("#id_username", admin_user.get_username())
        page.fill("#id_password", "password")
        page.click("[type=submit]")
        page.wait_for_url("**/admin/")
        return page

    return arrive
