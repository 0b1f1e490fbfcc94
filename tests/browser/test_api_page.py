"""The page about the API, in a real browser under a strict content security policy."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]


@pytest.mark.parametrize("width", [1440, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_page_is_styled_and_fits(browse, scheme, width):
    page = browse(color_scheme=scheme, viewport={"width": width, "height": 900})
    page.goto("/ojs/v1/docs")

    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 28)"}[scheme]
    assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_endpoint_is_found_from_the_list_and_unfolds(browse):
    page = browse()
    page.goto("/ojs/v1/docs")
    page.click("nav >> text=Enqueue a job >> nth=0")
    article = page.locator("#post_jobs")
    article.locator("summary", has_text="Body: NewJob").click()

    assert page.url.endswith("#post_jobs")
    assert '"type": "email.send"' in article.locator("details[open] pre").inner_text()
