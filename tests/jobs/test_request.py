"""A request as the views see it, before Django's own is made of it, if ever it is."""

from __future__ import annotations

import copy
from typing import Any

import pytest
from django.test import RequestFactory

from jobs.http.request import Request


def environ(**fields: Any) -> dict[str, Any]:
    return RequestFactory()._base_environ(PATH_INFO="/ojs/v1/jobs", REQUEST_METHOD="POST") | fields


@pytest.mark.parametrize("name", ["content_type", "query_params", "no_such_thing"])
def test_a_request_that_django_cannot_read_says_why(name):
    # Its length is read with the methods of a text.
    request = Request(environ(CONTENT_TYPE=["text/plain"]))

    with pytest.raises(ValueError, match=r"Django cannot read this request: .*list"):
        getattr(request, name)


def test_what_neither_has_is_missing():
    with pytest.raises(AttributeError, match="no_such_thing"):
        Request(environ()).no_such_thing  # noqa: B018


def test_a_copy_is_made_without_asking_for_what_is_not_there_yet():
    assert copy.copy(Request(environ())).path == "/ojs/v1/jobs"
