"""A site may demand a nonce of every script and style: Django's own pages have it since 6.1."""

from __future__ import annotations

import re

import django
import pytest

from tests.browser import walk
from tests.once import once_is_enough

pytestmark = [
    pytest.mark.django_db,
    pytest.mark.skipif(django.VERSION < (6, 1), reason="Django's admin has nonces since 6.1"),
    once_is_enough,
]

HEADER = "Content-Security-Policy"
CONTEXT = "django.template.context_processors.csp"
MIDDLEWARE = "django.middleware.csp.ContentSecurityPolicyMiddleware"
LOADED = re.compile(r"<(?:script|style|link rel=\"stylesheet\")[^>]*>")


def test_every_script_and_style_has_the_nonce_of_its_page(admin_client, settings):
    from django.utils.csp import CSP

    settings.SECURE_CSP = {"script-src": [CSP.NONCE], "style-src": [CSP.NONCE]}
    settings.MIDDLEWARE = [*settings.MIDDLEWARE, MIDDLEWARE]
    (engine,) = settings.TEMPLATES
    processors = [*engine["OPTIONS"]["context_processors"], CONTEXT]
    settings.TEMPLATES = [
        engine | {"OPTIONS": engine["OPTIONS"] | {"context_processors": processors}}
    ]

    bare, own = [], set()
    for name, url in walk.pages(walk.prepare()):
        page = admin_client.get(url)
        (nonce,) = set(re.findall(r"script-src 'nonce-([^']+)'", page.headers[HEADER]))
        found = LOADED.findall(page.content.decode())
        own |= {tag for tag in found if "/ojs/" in tag}
        bare += [f"{name}: {tag}" for tag in found if f'nonce="{nonce}"' not in tag]

    assert own
    assert bare == []
