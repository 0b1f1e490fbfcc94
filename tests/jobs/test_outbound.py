"""Requests of the server to addresses that users typed."""

from __future__ import annotations

import ipaddress
import socket
import threading

import pytest

from jobs.conf import configured
from jobs.http import outbound
from tests.once import once_is_enough
from tests.workers.receiver import answering, receiving

pytestmark = once_is_enough
LOOPBACK = {"OUTBOUND_NETWORKS": ["127.0.0.0/8"]}


@pytest.mark.parametrize(
    "address",
    [
        "127.0.0.1",
        "10.1.2.3",
        "172.16.0.1",
        "192.168.1.1",
        "169.254.169.254",
        "100.64.0.1",
        "100.100.100.200",
        "168.63.129.16",
        "::ffff:168.63.129.16",
        "192.0.0.192",
        "fd00:ec2::254",
        "0.0.0.0",
        "224.0.0.1",
        "::1",
        "fe80::1",
        "fd00::1",
        "::ffff:127.0.0.1",
        "64:ff9b::7f00:1",
        "2002:7f00:1::",
        "::7f00:1",
        "::8.8.8.8",
        "fec0::1",
        "64:ff9b:1::a00:1",
        "4000::1",
        "ff0e::1",
    ],
)
def test_what_is_not_public_is_refused_in_every_spelling(address):
    assert not outbound.is_allowed(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "address",
    ["192.0.43.7", "2a00:1450:4001:81b::2004", "::ffff:192.0.43.7", "64:ff9b::c000:2b07"],
)
def test_what_is_public_is_allowed(address):
    assert outbound.is_allowed(ipaddress.ip_address(address))


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:{port}/",
        "http://127.0.0.1:{port}/",
        "http://[::1]:{port}/",
        "http://2130706433:{port}/",
        "http://0x7f.1:{port}/",
        "http://u:p@example.com/",
        "ftp://example.com/",
        "http:///path",
        "http://example.com\r\nX: y/",
        "http://example.com:99999/",
        "http://localhost:0/",
        "https://192.0.43.7:0/",
    ],
)
def test_no_spelling_of_this_machine_is_connected_to(url):
    """A name that resolves to this machine, too: `localhost`."""
    with receiving() as receiver:
        with pytest.raises(outbound.Refused):
            outbound.post(url.format(port=receiver.server_address[1]), b"{}", {})

        assert receiver.received == []


def test_a_site_may_allow_its_own_ipv6_networks(settings):
    settings.OJS = settings.OJS | {"OUTBOUND_NETWORKS": ["fec0::/10", "64:ff9b:1::/48", "::1"]}

    for address in ("fec0::1", "64:ff9b:1::a00:1", "::1"):
        assert outbound.is_allowed(ipaddress.ip_address(address))
    assert not outbound.is_allowed(ipaddress.ip_address("fd00::1"))


@pytest.mark.parametrize("network", ["127.0.0.0/8", "127.0.0.1"])
def test_a_site_may_allow_a_network(settings, network):
    settings.OJS = settings.OJS | {"OUTBOUND_NETWORKS": [network, "fd00::/8"]}
    assert configured().OUTBOUND_NETWORKS[0] == network

    with receiving(204) as receiver:
        reply = outbound.post(receiver.at("localhost"), b'{"a": 1}', {"X-A": "b"})

    ((headers, body),) = receiver.received
    assert (reply.status, reply.is_success) == (204, True)
    assert (headers["X-A"], body) == ("b", b'{"a": 1}')
    assert headers["Host"] == f"localhost:{receiver.server_address[1]}"


def test_a_redirect_is_not_followed(settings):
    settings.OJS = settings.OJS | LOOPBACK
    with receiving(302) as receiver:
        reply = outbound.post(receiver.at(), b"{}", {})

    assert (reply.status, reply.is_success, reply.text) == (302, False, "noted")
    assert len(receiver.received) == 1


def test_redirects_are_followed_as_often_as_the_caller_says(settings):
    settings.OJS = settings.OJS | LOOPBACK
    with receiving(302, 307, 200, 301, 308, 302) as receiver:
        reply = outbound.post(receiver.at(), b'{"a": 1}', {"X-A": "b"}, redirects=2)
        with pytest.raises(outbound.OutboundError, match="more than 2 redirects"):
            outbound.post(receiver.at(), b"{}", {}, redirects=2)

    assert reply.status == 200
    assert [body for _, body in receiver.received[:3]] == [b'{"a": 1}'] * 3
    assert len(receiver.received) == 6


@pytest.mark.parametrize(
    ("location", "reason"),
    [
        ("http://169.254.169.254/latest/", "not a public address"),
        ("http://127.0.0.2:1/", "not a public address"),
        ("ftp://example.com/", "begins with http"),
        ("http://[", "not a URL"),
    ],
)
def test_a_redirect_leads_nowhere_that_the_url_could_not(settings, location, reason):
    settings.OJS = settings.OJS | {"OUTBOUND_NETWORKS": ["127.0.0.1"]}
    with receiving(302) as receiver:
        receiver.location = location
        with pytest.raises(outbound.Refused, match=reason):
            outbound.post(receiver.at(), b"{}", {}, redirects=3)

    assert len(receiver.received) == 1


def test_nothing_is_sent_in_clear_where_only_https_is_allowed(settings):
    settings.OJS = settings.OJS | LOOPBACK
    with receiving() as receiver, pytest.raises(outbound.Refused, match="https"):
        outbound.post(receiver.at(), b"{}", {}, only_https=True)

    assert receiver.received == []


def test_a_receiver_that_trickles_is_cut_off(settings):
    """Each byte comes in time, the whole response does not."""
    settings.OJS = settings.OJS | LOOPBACK
    over = threading.Event()
    with socket.create_server(("127.0.0.1", 0)) as server:

        def trickle() -> None:
            line, _ = server.accept()
            with line:
                try:
                    while not over.wait(0.01):
                        line.send(b"H")
                except OSError:
                    pass

        thread = threading.Thread(target=trickle, daemon=True)
        thread.start()
        with pytest.raises(outbound.OutboundError):
            outbound.post(f"http://127.0.0.1:{server.getsockname()[1]}/", b"{}", {}, timeout=0.5)
        over.set()
        thread.join()


CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize(
    ("rest", "then"),
    [
        (CHUNKED + b"2\r\nok\r\n", "silent"),
        (CHUNKED + b"2\r\nok\r\n", "close"),
        (CHUNKED + b"2\r\nok\r\n", "reset"),
        (CHUNKED + b"20\r\nok", "close"),
        (CHUNKED + b"no size\r\nok\r\n", "close"),
        (b"Content-Length: 99\r\n\r\nok", "silent"),
        (b"Content-Length: 99\r\n\r\nok", "reset"),
    ],
)
def test_a_body_that_breaks_off_leaves_the_status(settings, status, rest, then):
    settings.OJS = settings.OJS | LOOPBACK
    with answering(b"HTTP/1.1 %d A\r\n%b" % (status, rest), then=then) as url:
        reply = outbound.post(url, b"{}", {}, timeout=0.5)

    assert reply.status == status
    assert reply.text in ("ok", "")


@pytest.mark.parametrize("then", ["silent", "close", "reset"])
@pytest.mark.parametrize("status", [200, 404])
@pytest.mark.parametrize("headers", [b"", b"X: y\r\n" * 50, b"X: y\r\nX: ", CHUNKED[:-2]])
def test_headers_that_never_end_are_no_response(settings, headers, status, then):
    settings.OJS = settings.OJS | LOOPBACK
    answer = b"HTTP/1.1 %d A\r\n%b" % (status, headers)
    with answering(answer, then=then) as url, pytest.raises(outbound.OutboundError):
        outbound.post(url, b"{}", {}, timeout=0.5)


@pytest.mark.parametrize("status", [100, 102, 103])
def test_interim_responses_are_read_over(settings, status):
    settings.OJS = settings.OJS | LOOPBACK
    interim = b"HTTP/1.1 %d A\r\nLink: </a>\r\nContent-Length: 4\r\n\r\n" % status
    with answering(interim * 3 + b"HTTP/1.1 404 No\r\nContent-Length: 3\r\n\r\nwhy") as url:
        reply = outbound.post(url, b"{}", {})

    assert (reply.status, reply.text) == (404, "why")


@pytest.mark.parametrize(
    ("answer", "then"),
    [
        (b"HTTP/1.1 102 A\r\n\r\n" * 1000, "silent"),
        (b"HTTP/1.1 100 A\r\n\r\n" * 1000, "silent"),
        (b"HTTP/1.1 103 A\r\n\r\n", "close"),
        (b"HTTP/1.1 103 A\r\n\r\n", "silent"),
    ],
)
def test_interim_responses_alone_are_no_answer(settings, answer, then):
    settings.OJS = settings.OJS | LOOPBACK
    with answering(answer, then=then) as url, pytest.raises(outbound.OutboundError):
        outbound.post(url, b"{}", {}, timeout=0.5)


def test_who_does_not_answer_is_an_error(settings):
    settings.OJS = settings.OJS | LOOPBACK
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
    with pytest.raises(outbound.OutboundError, match=r"127\.0\.0\.1: .*refused"):
        outbound.post(f"http://127.0.0.1:{port}/", b"{}", {})
    with pytest.raises(outbound.OutboundError, match="cannot be resolved"):
        outbound.post("http://name.invalid/", b"{}", {})
