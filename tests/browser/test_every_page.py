"""Every page, in a real browser: it obeys the policy, fits its window, and is legible.

To view them:  OJS_TEST_PICTURES=/tmp/pages python -m pytest tests/browser/test_every_page.py
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from django.core.management import call_command

from tests.once import once_is_enough

from . import walk
from .collected import STORAGE

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    # What the pages say on PostgreSQL is what tests/test_admin_permissions.py and others read.
    once_is_enough,
]

PICTURES = os.environ.get("OJS_TEST_PICTURES")
SCHEMES = ("light", "dark")
WIDTHS = (1440, 390)
HEIGHT = 900

TOO_WIDE = "document.documentElement.scrollWidth - document.documentElement.clientWidth"

# A change of colours is gradual.
SETTLE = "document.getAnimations().forEach(each => each.finish())"


# Contrast of text and background by WCAG 2.2 §1.4.3; returns our texts that have too little.
# Stricter than axe, which asks less of large texts, and nothing if it is unsure of the background.
FAINT = """
() => {
    const numbers = colour => colour.match(/[\\d.]+/g).map(Number);
    const channel = value => {
        value /= 255;
        return value <= 0.04045 ? value / 12.92 : ((value + 0.055) / 1.055) ** 2.4;
    };
    const luminance = ([red, green, blue]) =>
        0.2126 * channel(red) + 0.7152 * channel(green) + 0.0722 * channel(blue);
    const behind = element => {
        for (let each = element; each; each = each.parentElement) {
            const colour = numbers(getComputedStyle(each).backgroundColor);
            if (colour.length === 3 || colour[3] === 1) return colour;
        }
        return [255, 255, 255];
    };
    const found = new Set();
    const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
    for (let node = walker.nextNode(); node; node = walker.nextNode()) {
        const element = node.parentElement, text = node.data.trim();
        if (!text || !element.closest("#content, .breadcrumbs")) continue;
        if (!element.checkVisibility() || element.closest("svg, .visually-hidden")) continue;
        const colours = [numbers(getComputedStyle(element).color), behind(element)];
        const [dark, light] = colours.map(luminance).sort((one, other) => one - other);
        const ratio = (light + 0.05) / (dark + 0.05);
        if (ratio < 4.5) found.add(`${text}: ${ratio.toFixed(1)} (${element.className})`);
    }
    return [...found];
}
"""


def look(page, name: str) -> list[str]:
    """Check a page in every colour scheme and width; return its problems."""
    wrong = []
    for width in WIDTHS:
        page.set_viewport_size({"width": width, "height": HEIGHT})
        if (pixels := page.evaluate(TOO_WIDE)) > 1:
            wrong.append(f"{name} is {pixels} pixels wider than {width}")
        for scheme in SCHEMES if PICTURES else ():
            page.emulate_media(color_scheme=scheme)
            page.evaluate(SETTLE)
            path = Path(PICTURES) / f"{name}-{scheme}-{width}.png"
            page.screenshot(path=str(path), full_page=True)
    for scheme in SCHEMES:
        page.emulate_media(color_scheme=scheme)
        page.evaluate(SETTLE)
        wrong += [f"{name}, {scheme}: {text}" for text in page.evaluate(FAINT)]
    return wrong


def test_every_page_obeys_the_policy_fits_its_window_and_is_legible(log_in):
    page = log_in()

    wrong = [fault for name in walk.visit(page) for fault in look(page, name)]

    assert wrong == [], "\n".join(wrong)


def test_a_site_that_is_not_ours_shows_every_page_from_hashed_files_in_german(
    log_in, settings, tmp_path
):
    """Another AdminSite under another prefix; German is longer, and fits a phone as well."""
    settings.ROOT_URLCONF = "tests.other_process"
    settings.STATIC_ROOT = str(tmp_path)
    settings.STORAGES = {**settings.STORAGES, "staticfiles": {"BACKEND": STORAGE}}
    call_command("collectstatic", interactive=False, verbosity=0)
    settings.STATICFILES_FINDERS = ["tests.browser.collected.Collected"]
    page = log_in(locale="de-DE", viewport={"width": 390, "height": HEIGHT})
    wrong, files = [], set()
    page.on("response", lambda reply: files.add((urlsplit(reply.url).path, reply.status)))

    for name, url in walk.pages(walk.prepare(), "control"):
        assert url.startswith("/shop/control/")
        assert page.goto(url).status == 200, url
        if (pixels := page.evaluate(TOO_WIDE)) > 1:
            wrong.append((name, pixels))

    assert wrong == []
    assert page.locator("html").get_attribute("lang") == "de"
    ours = {path for path, status in files if path.startswith("/static/ojs/") and status == 200}
    assert len(ours) >= 4 and all(re.search(r"\.[0-9a-f]{12}\.", path) for path in ours)
