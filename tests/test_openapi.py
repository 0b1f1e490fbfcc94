"""OpenAPI document: complete, consistent with its examples and with the code."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import jsonschema
import pytest
import schemathesis
from django.core.management import CommandError, call_command
from django.utils.http import urlencode

from jobs.errors import OJSError
from jobs.http.errors import status_of
from tests.ojs_client import OJSClient
from tests.once import once_is_enough
from workers.bindings.flare.views import WORDS
from workers.openapi import operations
from workers.openapi.document import current
from workers.openapi.generate import NotDescribed, document, refusals_of, written
from workers.openapi.refusals import EXAMPLES

pytestmark = once_is_enough

JSON_SCHEMA = "https://json-schema.org/draft/2020-12/schema"


def check(instance: Any, schema: Any) -> None:
    whole = {"$schema": JSON_SCHEMA, "components": current()["components"], "allOf": [schema]}
    jsonschema.Draft202012Validator(
        whole, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER
    ).validate(instance)


def media() -> list[Any]:
    """Every body and response: its location and its content."""
    found = []
    for path, methods in current()["paths"].items():
        for method, operation in methods.items():
            places = {"body": operation.get("requestBody", {})} | operation["responses"]
            for place, holder in places.items():
                for content in holder.get("content", {}).values():
                    found.append(pytest.param(content, id=f"{method} {path} {place}"))
    for name, response in current()["components"]["responses"].items():
        for content in response["content"].values():
            found.append(pytest.param(content, id=name))
    return found


def examples(content: Any) -> list[Any]:
    several = [example["value"] for example in content.get("examples", {}).values()]
    return several + ([content["example"]] if "example" in content else [])


# The document


@pytest.mark.slow
def test_it_is_an_openapi_document():
    schemathesis.openapi.from_dict(current()).validate()


def test_the_command_prints_what_is_served(capsys):
    call_command("openapi")

    assert json.loads(capsys.readouterr().out) == current()


def test_the_command_writes_it_where_it_is_wanted(tmp_path):
    call_command("openapi", str(tmp_path / "openapi.json"))

    assert (tmp_path / "openapi.json").read_text() == written(current())


def test_the_check_writes_nothing_and_finds_what_is_not_described(monkeypatch, capsys):
    call_command("openapi", check=True)
    assert "{" not in capsys.readouterr().out

    monkeypatch.delitem(operations.OPERATIONS, ("GET", "/ojs/v1/queues"))
    with pytest.raises(CommandError, match="GET /ojs/v1/queues is not described"):
        call_command("openapi", check=True)


def test_an_endpoint_without_a_description_is_reported(monkeypatch):
    monkeypatch.delitem(operations.OPERATIONS, ("POST", "/ojs/v1/jobs"))

    with pytest.raises(NotDescribed, match=r"POST /ojs/v1/jobs$"):
        document()


def test_nothing_is_described_that_is_not_there():
    described = operations.OPERATIONS.keys() | operations.ALIASES.keys()
    there = {
        (method.upper(), path) for path, methods in current()["paths"].items() for method in methods
    }

    assert described == there
    assert set(operations.ALIASES.values()) <= operations.OPERATIONS.keys()


@pytest.mark.parametrize("content", media())
def test_every_example_has_the_form_it_is_an_example_of(content):
    for example in examples(content):
        check(example, content["schema"])


# What tools need that make clients of it


def bodies() -> Iterator[tuple[str, Any]]:
    for path, methods in current()["paths"].items():
        for method, operation in methods.items():
            if "requestBody" in operation:
                yield f"{method} {path}", operation["requestBody"]["content"]


def test_every_body_has_one_media_type_and_a_name_of_its_own():
    for where, content in bodies():
        (media,) = content.values()
        assert [*content] == ["application/json"], where
        assert media["schema"].keys() == {"$ref"}, where


def parts_of(schema: Any) -> Iterator[Any]:
    """The schema, and all that is in it or that it refers to."""
    seen: set[str] = set()
    left = [schema]
    while left:
        part = left.pop()
        if isinstance(part, dict):
            yield part
            name = str(part.get("$ref", "")).rpartition("/")[2]
            if name and name not in seen:
                seen.add(name)
                left.append(current()["components"]["schemas"][name])
            left += part.values()
        elif isinstance(part, list):
            left += part


def test_no_member_of_a_request_has_a_default_that_a_tool_would_require():
    for where, content in bodies():
        (media,) = content.values()
        assert not any("default" in part for part in parts_of(media["schema"])), where


@pytest.mark.parametrize("name", sorted(current()["components"]["schemas"]))
def test_no_schema_has_the_name_of_one_of_its_members(name):
    """A client in Python would have one variable for both."""
    members = current()["components"]["schemas"][name].get("properties", {})

    assert name.lower() not in {member.replace("_", "") for member in members}


def sent(kind: type[OJSError]) -> Iterator[tuple[type[OJSError], int]]:
    """The errors that may be raised, and the status of each."""
    yield kind, status_of(kind.__new__(kind))
    for more in kind.__subclasses__():
        yield from sent(more)


OJS_CODES = {(status, kind.code) for kind, status in sent(OJSError)} | {(503, OJSError.code)}
FLARE_CODES = {(status, code) for _, status, code in WORDS} | OJS_CODES


@pytest.mark.parametrize("name", sorted(current()["components"]["responses"]))
def test_every_refusal_has_codes_that_are_sent_with_its_status(name):
    status = int(name.removeprefix("Flare").removeprefix("Refused")[:3])
    (content,) = current()["components"]["responses"][name]["content"].values()
    codes = FLARE_CODES if name.startswith("Flare") else OJS_CODES

    shown = [example["error"]["code"] for example in examples(content)]
    assert shown == list(content["examples"])
    assert {(status, code) for code in shown} <= codes


def test_every_example_of_a_refusal_is_used():
    listed = {
        refusal.kind
        for operation in operations.OPERATIONS.values()
        for is_open in (True, False)
        for refusal in refusals_of(operation, is_open=is_open)
    }

    assert listed == EXAMPLES.keys()


def test_every_other_code_in_an_example_is_one_of_a_failed_attempt():
    def codes(value: Any) -> Iterator[str]:
        if isinstance(value, dict):
            yield from (value["code"],) if isinstance(value.get("code"), str) else ()
            value = list(value.values())
        if isinstance(value, list):
            for each in value:
                yield from codes(each)

    found = {code for param in media() for code in codes(examples(param.values[0]))}

    assert found - {code for _, code in FLARE_CODES} == {"handler_error"}


def test_every_body_and_every_refusal_has_an_example():
    without = [
        param.id
        for param in media()
        if not examples(param.values[0])
        and (str(param.id).endswith("body") or "Refused" in str(param.id))
    ]

    assert without == []


@pytest.mark.parametrize("key", sorted(operations.OPERATIONS), ids=" ".join)
def test_every_endpoint_says_what_it_may_refuse(key):
    method, path = key
    responses = current()["paths"][path][method.lower()]["responses"]

    assert "400" in responses
    if current()["paths"][path][method.lower()]["security"] != [{}]:
        assert {"401", "403"} <= responses.keys()
    # 101: a WebSocket was opened.
    assert any(status.startswith("2") or status == "101" for status in responses)


# Served


def test_the_document_is_there_for_everybody(db):
    reply = OJSClient().get("/ojs/v1/openapi.json")

    assert reply.status_code == 200
    assert reply.headers["Content-Type"] == "application/json"
    assert reply.headers["Access-Control-Allow-Origin"] == "*"
    served = json.loads(reply.content)
    assert served["servers"] == [{"url": "/"}]
    assert served["paths"] == current()["paths"]


def test_the_pages_show_every_endpoint_and_what_to_paste(db):
    document, texts = current(), []
    for tag in [*(tag["name"] for tag in document["tags"]), "forms"]:
        reply = OJSClient().get(f"/ojs/v1/docs?{urlencode({'tag': tag})}")
        assert reply.status_code == 200
        texts.append(reply.content.decode())

    pages = "".join(texts)
    for path in document["paths"]:
        assert f"<code>{path}</code>" in pages
    for name in document["components"]["schemas"]:
        assert pages.count(f'id="form-{name}"') == 1
    assert "http://testserver/ojs/v1/jobs" in pages
    assert "<script" not in pages
    assert "style=" not in pages


@pytest.mark.parametrize("query", ["", "?tag=forms", "?q=job"])
@pytest.mark.parametrize("path", ["docs", "openapi.json"])
def test_what_is_sent_of_them_is_compressed_and_light(client, db, path, query):
    reply = client.get(f"/ojs/v1/{path}{query}", HTTP_ACCEPT_ENCODING="gzip")

    assert reply.headers["Content-Encoding"] == "gzip"
    assert len(reply.content) < 100_000


def test_endpoints_are_found_by_their_words(client, db):
    found = client.get("/ojs/v1/docs", {"q": "cancel POST workflow"}).content.decode()
    nothing = client.get("/ojs/v1/docs", {"q": "nonsense-xyz"}).content.decode()

    assert found.count("<article") < 5
    assert "<article" not in nothing and "none." in nothing


def test_the_pages_are_english_like_what_they_describe_whatever_the_reader_speaks(client, db):
    german = client.get("/ojs/v1/docs", HTTP_ACCEPT_LANGUAGE="de")

    assert german.content == client.get("/ojs/v1/docs", HTTP_ACCEPT_LANGUAGE="en").content
    assert german.headers["Content-Language"] == "en"


def test_a_site_that_mounts_it_elsewhere_reads_its_own_addresses(rf):
    from workers.bindings.ojs.documentation import docs, openapi_json

    document = json.loads(openapi_json(rf.get("/queue/ojs/v1/openapi.json")).content)
    page = docs(rf.get("/queue/ojs/v1/docs")).content.decode()

    assert document["servers"] == [{"url": "/queue"}]
    assert "http://testserver/queue/ojs/v1/jobs" in page


@pytest.mark.parametrize("path", ["openapi.json", "docs"])
def test_it_may_be_read_and_nothing_else(db, path):
    assert OJSClient().post(f"/ojs/v1/{path}").status_code == 405
