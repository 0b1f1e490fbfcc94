"""Whatever is sent, the response is a 4xx in the OJS form, and nothing is half-stored.

Malformed, absurd and gigantic bodies, and odd ones that must be returned unchanged
(JSON format §2.3, §8.1, §13; HTTP §6.1, §16).
"""

from __future__ import annotations

import io
import json

import pytest

from jobs.http.body import DEEPEST
from jobs.models import Event, Job, JobError, Queue
from tests.factories import JobFactory
from tests.ojs_client import MEDIA_TYPE, POSTS, refusal
from workers.models import Worker

every_post = pytest.mark.parametrize("path", POSTS)


def stored() -> int:
    return sum(model.objects.count() for model in (Job, Queue, Event, JobError, Worker))


def as_doubles(text: str | bytes) -> object:
    """Read JSON as most clients do: all its numbers are doubles."""
    return json.loads(text, parse_int=float)


def job_with(text: str) -> bytes:
    """A valid job whose arguments contain `text`, a piece of JSON."""
    return b'{"type":"email.send","args":[' + text.encode("utf-8", "surrogatepass") + b"]}"


# Not JSON, or JSON that cannot be stored

MALFORMED = {
    "nothing closed": b"{",
    "no quotes": b"{type: a}",
    "single quotes": b"{'type': 'a', 'args': []}",
    "a trailing comma": b'{"type":"a","args":[],}',
    "something after it": b'{"type":"a","args":[]} {}',
    "two objects": b'{"type":"a","args":[]}{"type":"a","args":[]}',
    "a comment": b'{"type":"a","args":[] /* x */}',
    "NaN": job_with("NaN"),
    "Infinity": job_with("-Infinity"),
    "1e400": job_with("1e400"),
    "a bare minus": job_with("-"),
    "a leading zero": job_with("01"),
    "hexadecimal": job_with("0x1F"),
    "a raw newline in a string": b'{"type":"a","args":["a\nb"]}',
    "a raw NUL in a string": b'{"type":"a","args":["a\x00b"]}',
    "an escaped NUL": job_with(r'"a\u0000b"'),
    "an escaped NUL in a name": job_with(r'{"a\u0000b": 1}'),
    "a NUL deep inside": job_with(r'[[{"a": ["\u0000"]}]]'),
    "a lone high surrogate": job_with(r'"\ud800"'),
    "a lone low surrogate": job_with(r'"\udc00"'),
    "surrogates the wrong way round": job_with(r'"\udc00\ud800"'),
    "a surrogate in UTF-8": job_with('"\ud800"'),
    "a lone surrogate in a name": job_with(r'{"\ud800": 1}'),
    "Latin-1": '{"type":"a","args":["ü"]}'.encode("latin-1"),
    "UTF-16": '{"type":"a","args":[]}'.encode("utf-16"),
    "UTF-32": '{"type":"a","args":[]}'.encode("utf-32"),
    "an overlong encoding": b'{"type":"a","args":["\xc0\x80"]}',
    "half a character": b'{"type":"a","args":["\xc3"]}',
    "a byte order mark": b"\xef\xbb\xbf" + b'{"type":"a","args":[]}',
    "an integer beyond doubles": job_with("9007199254740993"),
    "a negative one": job_with("-9007199254740992"),
    "an integer beyond 64 bits": job_with("18446744073709551616"),
    "a very long integer": job_with("1" + "0" * 5000),
    "an integer of a thousand digits in meta": b'{"type":"a","args":[],"meta":{"n":%s}}'
    % (b"9" * 1000),
    "random bytes": bytes(range(256)),
    "compressed": b"\x1f\x8b\x08\x00\x00\x00\x00\x00\x00\x03\x03\x00\x00\x00\x00\x00",
    "a form": b"type=a&args=",
    "XML": b'<?xml version="1.0"?><job/>',
}


@pytest.mark.parametrize("what", list(MALFORMED))
def test_what_is_no_json_we_can_keep_is_refused(api, what):
    reply = api.send("jobs", MALFORMED[what])

    assert reply.status_code == 400
    assert refusal(reply)["code"] == "invalid_payload"
    assert stored() == 0


@pytest.mark.parametrize(
    "number",
    [
        *("1e16", "-1E16", "1e+300", "1.7976931348623157E+308", "0.00001e30", "1000000e10"),
        *("9007199254740992.0", "9007199254740993e0", "-90071992547409920e-1", "1e0000020"),
    ],
)
@pytest.mark.parametrize("around", ["%s", "[%s ]", '{"a":{"b" :%s}}', '["1e2",%s,"a, e, i"]'])
def test_an_integer_is_refused_however_it_is_written(api, number, around):
    """PostgreSQL would return 1e300 as an integer of 301 digits (JSON format §4.2)."""
    job = JobFactory(active=True)
    value = (around % number).encode()
    requests = [
        ("jobs", job_with(value.decode())),
        ("jobs", b'{"type":"a","args":[],"meta":{"a":%s}}' % value),
        ("jobs", b'{"type":"a","args":[],"x_mine":%s}' % value),
        ("jobs/batch", b'{"jobs":[{"type":"a","args":[%s]}]}' % value),
        ("workers/ack", b'{"job_id":"%s","result":%s}' % (str(job.pk).encode(), value)),
    ]
    for path, body in requests:
        reply = api.send(path, body)

        assert (reply.status_code, refusal(reply)["code"]) == (400, "invalid_payload")
    assert Job.objects.get() == job


def test_a_float_stays_one(api):
    sent = [1.0, 1e15, 0.1, 1e-7, 123456789.125]

    job_id = api.pushed(args=sent)

    found = api.job(job_id)["args"]
    assert (found, [type(value) for value in found]) == (sent, [float] * 5)


def test_tiny_numbers_are_refused_if_their_digits_are_more_than_a_body_may_have(api, settings):
    """PostgreSQL stores the digits, and each answer has them."""
    settings.OJS = settings.OJS | {"MAX_BODY_SIZE": 1500}

    assert api.send("jobs", job_with(",".join(["1e-300"] * 4))).status_code == 201
    assert api.send("jobs", job_with(",".join(["1e-30"] * 40))).status_code == 201
    assert api.send("jobs", job_with(",".join(['"1e-300"'] * 9))).status_code == 201
    reply = api.send("jobs", job_with(",".join(["-1E-300"] * 6)))

    assert (reply.status_code, refusal(reply)["code"]) == (400, "invalid_payload")


@pytest.mark.parametrize(
    "digits", [str(2**53), str(2**64), "9" * 300], ids=["54 bits", "65 bits", "far more"]
)
def test_where_an_integer_is_too_large_is_said(api, digits):
    reply = api.send("jobs", job_with(f'0.5, {{"n": [{digits}]}}'))

    assert refusal(reply)["details"]["field"] == "args[1].n[0]"


@every_post
@pytest.mark.parametrize("body", [b"[]", b'"text"', b"1", b"null", b"true", b"[{}]", b"{", b"\xff"])
@pytest.mark.slow
def test_every_endpoint_wants_an_object(api, path, body):
    reply = api.send(path, body)

    assert reply.status_code == 400
    assert refusal(reply)["code"] == "invalid_payload"
    assert stored() == 0


@every_post
def test_every_endpoint_refuses_another_media_type(api, path):
    reply = api.send(path, b"{}", content_type="text/html")

    assert reply.status_code == 400
    assert refusal(reply)["code"] == "invalid_request"


@every_post
def test_no_endpoint_stumbles_over_an_empty_object(api, path):
    assert 400 <= api.send(path, {}).status_code < 500
    assert stored() == 0


# Unusual but valid JSON: it is returned unchanged


@pytest.mark.parametrize(
    "text",
    [
        "0",
        "-0.0",
        "9007199254740991",
        "-9007199254740991",
        "1e15",
        "-9.00719925474099E+15",
        "1.0",
        "0.000001",
        "1e-300",
        "5e-324",
        "1e-400",
        "0.1234567890123456789",
        '"9007199254740993"',
        '""',
        r'"\\u0000"',
        r'"\u0001\u001f\u007f\u2028"',
        r'"\ud83d\ude00"',
        '"😀 ü 漢字 \u202e"',
        '{"": {"": ""}}',
        '{"a": 1, "a": 2}',
        '{"__class__": "x", "$type": "y", "__proto__": {}}',
        '"' + "x" * 100_000 + '"',
        "[" * 100 + "]" * 100,
        '[1e15, "1234567890123456789", 1234567890123456]',
        '["1e25", "12345678901234567"]',
    ],
)
def test_strange_values_survive_the_whole_round(api, text):
    sent = as_doubles(text)
    job_id = api.send("jobs", job_with(text)).json()["job"]["id"]

    def seen(name: str) -> object:
        return as_doubles(api.see(f"jobs/{job_id}").content)["job"][name]

    assert seen("args") == [sent]
    fetched = as_doubles(api.send("workers/fetch", {"queues": ["default"]}).content)
    assert fetched["jobs"][0]["args"] == [sent]
    ack = b'{"job_id":"%s","result":%s}' % (job_id.encode(), text.encode())
    assert api.send("workers/ack", ack).status_code == 200
    assert seen("result") == sent


@pytest.mark.parametrize("text", ["1e15", "-1e-300", r'"\u0001"'])
def test_strange_values_survive_in_every_member(api, text):
    body = b'{"type":"a","args":[],"meta":{"m":%s},"x_mine":%s}' % ((text.encode(),) * 2)
    job_id = api.send("jobs", body).json()["job"]["id"]
    api.fetch()
    error = b'{"code":"DEAD_LETTER","message":"m","details":{"d":%s}}' % text.encode()
    api.send("workers/nack", b'{"job_id":"%s","error":%s}' % (job_id.encode(), error))

    (dead,) = as_doubles(api.see("dead-letter").content)["jobs"]

    value = as_doubles(text)
    assert dead["meta"] == {"m": value}
    assert dead["x_mine"] == value
    assert dead["error"]["details"] == {"d": value}
    job = as_doubles(api.see(f"jobs/{job_id}").content)["job"]
    assert {name: job[name] for name in dead} == dead


def test_the_last_of_repeated_names_counts(api):
    """JSON format §13.6."""
    reply = api.send("jobs", b'{"type":"first","args":[1],"type":"second"}')

    assert reply.json()["job"]["type"] == "second"


# Depth


def nested(levels: int, inside: str = "") -> str:
    return "[" * levels + inside + "]" * levels


@pytest.mark.parametrize("levels", [DEEPEST - 1, DEEPEST])
def test_what_is_accepted_can_be_returned_everywhere(api, levels):
    """Every response adds a few levels around the job."""
    args = nested(levels - 1).encode()
    job_id = api.send("jobs", b'{"type":"a","args":%s,"x":%s}' % (args, args)).json()["job"]["id"]
    details = nested(levels - 3).encode()

    assert api.job(job_id)["args"] == json.loads(args)
    assert len(api.fetch()) == 1
    error = b'{"code":"DEAD_LETTER","message":"m","details":{"d":%s}}' % details
    assert (
        api.send(
            "workers/nack", b'{"job_id":"%s","error":%s}' % (job_id.encode(), error)
        ).status_code
        == 200
    )
    assert api.see("dead-letter").status_code == 200
    sdk = api.get(f"/ojs/v1/jobs/{job_id}", headers={"OJS-Version": "1.0"})
    assert sdk.json()["job"]["error"]["details"]["d"] == json.loads(details)


@pytest.mark.parametrize("levels", [DEEPEST - 1, DEEPEST])
def test_a_deep_result_can_be_returned(api, levels):
    job = JobFactory(active=True)
    result = nested(levels - 1).encode()

    reply = api.send("workers/ack", b'{"job_id":"%s","result":%s}' % (str(job.pk).encode(), result))

    assert reply.status_code == 200
    assert api.job(job.pk)["result"] == json.loads(result)


@every_post
def test_absurd_nesting_is_refused_everywhere(api, path):
    for levels in (DEEPEST + 1, 254, 255, 1023, 1024, 1025, 100_000):
        objects = '{"a":' * (levels - 1) + "1" + "}" * (levels - 1)
        for deep in (nested(levels - 1), objects):
            reply = api.send(path, b'{"args":%s}' % deep.encode())

            assert reply.status_code == 400, levels
            assert refusal(reply)["code"] == "invalid_payload"


def test_many_brackets_side_by_side_are_not_deep(api):
    text = "[" + ",".join(["[]"] * 5000) + "]"

    assert api.send("jobs", job_with(text)).status_code == 201


def test_brackets_in_a_string_are_not_deep(api):
    assert api.push(args=["[" * 5000]).status_code == 201


# Size


def test_a_job_of_a_mebibyte_is_accepted(api):
    """JSON format §8.1: MUST."""
    frame = len(job_with('""'))
    body = job_with('"' + "x" * (2**20 - frame) + '"')
    assert len(body) == 2**20

    reply = api.send("jobs", body)

    assert reply.status_code == 201
    (fetched,) = api.fetch()
    assert len(fetched["args"][0]) == 2**20 - frame


def test_a_body_may_be_as_big_as_the_limit_and_not_a_byte_more(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BODY_SIZE": 1000}
    good = job_with('"' + "x" * (1000 - len(job_with('""'))) + '"')
    assert len(good) == 1000

    assert api.send("jobs", good).status_code == 201
    reply = api.send("jobs", good + b" ")

    assert reply.status_code == 413
    error = refusal(reply)
    assert error["code"] == "envelope_too_large"
    assert error["details"] == {"field": "envelope", "max_bytes": 1000, "actual_bytes": 1001}
    assert Job.objects.count() == 1


def test_the_sites_own_limit_on_bodies_does_not_matter(api, settings):
    settings.DATA_UPLOAD_MAX_MEMORY_SIZE = 100

    assert api.push(args=["x" * 1000]).status_code == 201


@every_post
def test_a_gigantic_body_is_refused_before_it_is_read(api, path):
    """By its announced length alone: there is no body here."""
    reply = api.send(path, b"{}", CONTENT_LENGTH=str(10**12))

    assert reply.status_code == 413
    assert refusal(reply)["details"]["actual_bytes"] == 10**12


def test_a_body_somewhat_too_big_is_read_to_its_end(api, settings):
    """Its sender may read the response only then."""
    settings.OJS = {**settings.OJS, "MAX_BODY_SIZE": 100_000}
    body = io.BytesIO(b" " * 400_000)

    reply = raw(api, b"", **{"wsgi.input": body, "CONTENT_LENGTH": "400000"})

    assert reply.status_code == 413
    assert body.tell() == 400_000


def raw(api, body: bytes, **environ):
    """POST a job the way a WSGI server hands it over; no length is announced unless given."""
    return api.request(
        **{
            "REQUEST_METHOD": "POST",
            "PATH_INFO": "/ojs/v1/jobs",
            "CONTENT_TYPE": MEDIA_TYPE,
            "wsgi.input": io.BytesIO(body),
            **environ,
        }
    )


def test_a_chunked_body_is_read_to_its_end(api):
    """It announces no length; the server reports that it ends by itself."""
    reply = raw(api, job_with("1"), **{"wsgi.input_terminated": True})

    assert reply.status_code == 201


def test_a_gigantic_body_without_a_length_is_refused_too(api, settings):
    settings.OJS = {**settings.OJS, "MAX_BODY_SIZE": 1000}
    body = io.BytesIO(job_with('"' + "x" * 100_000 + '"'))

    reply = raw(api, b"", **{"wsgi.input": body, "wsgi.input_terminated": True})

    assert reply.status_code == 413
    assert body.tell() <= 1001
    assert stored() == 0


@pytest.mark.parametrize(
    "announced", ["", "0", "abc", "-1", "1.5", "9" * 5000, " 7", "\xb2", "1e3"]
)
def test_a_length_that_lies_is_no_way_around(api, announced):
    reply = raw(api, job_with("1"), CONTENT_LENGTH=announced)

    assert 400 <= reply.status_code < 500
    refusal(reply)
    assert stored() == 0


def test_a_body_longer_than_announced_is_cut_where_it_should_end(api):
    body = job_with("1")

    reply = raw(api, body + b', "smuggled": 1', CONTENT_LENGTH=str(len(body)))

    assert reply.status_code == 201
    assert "smuggled" not in reply.json()["job"]


def test_a_body_shorter_than_announced_is_malformed(api):
    reply = raw(api, job_with("1")[:-3], CONTENT_LENGTH=str(len(job_with("1"))))

    assert reply.status_code == 400
