"""Version of the specification that a client requests (OJS HTTP §3.2, §3.3)."""

from __future__ import annotations

import re
from typing import Any

from rest_framework.request import Request
from rest_framework.versioning import BaseVersioning

from ..errors import Unsupported
from .extensions import check_extensions
from .request import Meta

SPEC_VERSION = "1.0"
OUR_VERSION = re.compile(r"1(\.[0-9]{1,9}){0,2}(-rc\.[0-9]{1,9})?")
"""Any minor version of the supported major one: newer ones only add (OJS HTTP §3.3)."""


class SpecVersioning(BaseVersioning):
    """`OJS-Version`: the answer is 1.0 for every requested minor version."""

    def determine_version(self, request: Request, *args: Any, **kwargs: Any) -> str:
        check_version(request.META)
        return SPEC_VERSION


def check_version(meta: Meta) -> None:
    """Check that this server speaks what the request asks for.

    Raises:
        Unsupported: the client requests a version that is not supported (OJS HTTP §3.2).
        ExtensionNotSupported: the request needs an extension that this server does not have.
    """
    wanted = meta.get("HTTP_OJS_VERSION")
    if wanted and not OUR_VERSION.fullmatch(wanted.strip()):
        raise Unsupported(f"OJS version {wanted!r} is not supported.", supported=[SPEC_VERSION])
    check_extensions(meta)
