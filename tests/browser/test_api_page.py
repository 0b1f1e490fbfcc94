"""Page about the API, in a real browser under a strict content security policy."""

from __future__ import annotations

import pytest

from tests.once import once_is_enough

pytestmark = [
    once_is_enough,
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
]


def test_the_page_is_styled_and_fits(browse):
    page = browse()
    page.goto("/ojs/v1/docs")

    for scheme, colour in (("light", "rgb(255, 255, 255)"), ("dark", "rgb(20, 23, 28)")):
        page.emulate_media(color_scheme=scheme)
        assert page.evaluate("getComputedStyle(document.body).backgroundColor") == colour
    for width in (1440, 390):
        page.set_viewport_size({"width": width, "height": 900})
        assert page.evaluate("document.documentElement.scrollWidth") <= width


def test_an_endpoint_is_found_from_the_list_and_unfolds(browse):
    page = browse()
    page.goto("/ojs/v1/docs")
    page.click("nav >> text=Enqueue a job >> nth=0")
    article = page.locator("#post_jobs")
    article.locator("summary", has_text="Body: NewJob").click()

    assert page.url.endswith("#post_jobs")
    assert '"type": "email.send"' in article.locator("details[open] pre").inner_text()
    assert row(article, "type") == ["body, required", "string, length ≤ 255"]
    assert row(article, "options.queue") == ["body", "string, length ≤ 128"]
    assert row(page.locator("#get_jobs"), "limit") == ["query", "integer, ≥ 1, ≤ 200"]


def row(article, name):
    """Place and kind of a parameter."""
    head = article.locator("th", has=article.page.locator(f"code:text-is('{name}')"))
    return head.locator("xpath=../td").all_inner_texts()[:2]
