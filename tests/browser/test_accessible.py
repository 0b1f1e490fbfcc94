"""axe-core over every page: nothing serious or critical, in any light, width or language."""

from __future__ import annotations

import pytest

from tests.once import once_is_enough
from workers.chores import reaper

from . import walk

pytestmark = [
    pytest.mark.browser,
    pytest.mark.slow,
    pytest.mark.django_db(transaction=True),
    once_is_enough,
]

BAD = ("serious", "critical")
OPTIONS = {"resultTypes": ["violations"], "preload": False}
"""Without preloading, which asks for imported style sheets at wrong addresses."""
LOOKS = {"light": {"width": 1280, "height": 900}, "dark": {"width": 390, "height": 844}}
OF_A_LOOK = {"runOnly": ["color-contrast", "meta-viewport", "scrollable-region-focusable"]}
"""Rules whose answer depends on colours and width; the others are asked once."""


def test_no_page_has_a_serious_fault(log_in):
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    rows = walk.prepare()
    # axe itself writes styles, which the policy forbids.
    page = log_in(reduced_motion="reduce", bypass_csp=True, locale="de-DE")
    wrong = []
    for name, url in walk.pages(rows):
        reaper.sign_of_life("web-1:41")  # else each page says that it has not run
        assert page.goto(url).status == 200, url
        for look, size in LOOKS.items():
            page.emulate_media(color_scheme=look)
            page.set_viewport_size(size)
            options = OPTIONS if look == "light" else OPTIONS | OF_A_LOOK
            for fault in axe.run(page, options=options).response["violations"]:
                if fault["impact"] in BAD:
                    places = [" ".join(map(str, node["target"])) for node in fault["nodes"]]
                    wrong.append(f"{name}, {look}: {fault['id']} ({fault['help']}): {places[:3]}")

    assert wrong == [], "\n".join(wrong)
