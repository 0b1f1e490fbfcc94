"""axe-core over every page: nothing serious or critical, in any light, width or language."""

from __future__ import annotations

import pytest

from tests.once import once_is_enough

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
    # axe itself writes styles, which the policy forbids.
    page = log_in(reduced_motion="reduce", bypass_csp=True, locale="de-DE")
    wrong = []
    for name in walk.visit(page):
        found = {}
        for look, size in LOOKS.items():
            page.emulate_media(color_scheme=look)
            page.set_viewport_size(size)
            if found:  # axe is in the page already
                found[look] = page.evaluate("options => axe.run(options)", OPTIONS | OF_A_LOOK)
            else:
                found[look] = axe.run(page, options=OPTIONS).response
        for look, result in found.items():
            for fault in result["violations"]:
                if fault["impact"] in BAD:
                    places = [" ".join(map(str, node["target"])) for node in fault["nodes"]]
                    wrong.append(f"{name}, {look}: {fault['id']} ({fault['help']}): {places[:3]}")

    assert wrong == [], "\n".join(wrong)
