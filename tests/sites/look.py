"""A browser at the admin of a site: nothing is hard to read there, in light or dark."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any
from urllib.parse import urlsplit

import httpx

from tests.browser.conftest import ARGUMENTS, CHROMIUM, PATIENCE
from tests.browser.test_accessible import BAD, OPTIONS

SIZE: Any = {"width": 1280, "height": 900}
PLAIN = """
(() => {
    const pen = document.createElement("canvas").getContext("2d", {willReadFrequently: true});
    const light = colour => {
        pen.clearRect(0, 0, 1, 1);
        pen.fillStyle = colour;
        pen.fillRect(0, 0, 1, 1);
        const [red, green, blue, alpha] = pen.getImageData(0, 0, 1, 1).data;
        return alpha ? red + green + blue : NaN;
    };
    const isDark = document.documentElement.classList.contains("dark");
    return [...document.querySelectorAll(".ojs-chip")].filter(chip => {
        const style = getComputedStyle(chip);
        const difference = light(style.color) - light(style.backgroundColor);
        return style.borderTopWidth === "0px" || !(isDark ? difference > 0 : difference < 0);
    }).map(chip => chip.textContent);
})()
"""
"""The badges without a ground, or with one that is not of the scheme."""
COVERED = """
[...document.querySelectorAll(".ojs-counts a, .object-tools a, .ojs-tool")].filter(link => {
    const box = link.getBoundingClientRect();
    const top = document.elementFromPoint(box.x + box.width / 2, box.y + box.height / 2);
    return !link.contains(top) && !top?.contains(link);
}).map(link => link.textContent.trim())
"""
"""The links and buttons above a page that something else lies on, or that lie outside of it."""


def at(paths: Iterable[str], client: httpx.Client) -> None:
    """Look at pages with the session of a client.

    Raises:
        AssertionError: axe finds something serious, or there is no browser.
    """
    from axe_playwright_python.sync_playwright import Axe
    from playwright.sync_api import sync_playwright

    assert CHROMIUM, "there is no Chromium: apt-get install chromium-headless-shell"
    url = str(client.base_url).rstrip("/")
    session: Any = {"name": "sessionid", "value": client.cookies["sessionid"], "url": url}
    wrong: list[str] = []

    def listen(reply: Any) -> None:
        if reply.status >= 400:
            wrong.append(f"{reply.url}: {reply.status}")

    with sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=CHROMIUM, args=ARGUMENTS)
        for scheme in ("light", "dark"):
            context = browser.new_context(
                color_scheme=scheme, viewport=SIZE, reduced_motion="reduce", base_url=url
            )
            context.set_default_timeout(PATIENCE)
            context.add_cookies([session])
            page = context.new_page()
            page.on("response", listen)
            for path in paths:
                page.goto(path)
                assert urlsplit(page.url).path == path, f"{path}: {page.url}"
                for what, script in (("plain", PLAIN), ("covered", COVERED)):
                    if found := page.evaluate(script):
                        wrong.append(f"{path}, {scheme}: {what}: {found[:3]}")
                for fault in Axe().run(page, options=OPTIONS).response["violations"]:
                    if fault["impact"] in BAD:
                        places = [node["target"] for node in fault["nodes"]]
                        wrong.append(f"{path}, {scheme}: {fault['id']}: {places[:3]}")
        browser.close()
    assert not wrong, "\n".join(wrong)
