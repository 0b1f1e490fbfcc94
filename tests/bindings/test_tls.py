"""AGQ and Rota over TLS, with a certificate that is renewed while they run."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import signal
import ssl
import subprocess
import sys

import pytest
import websockets

from jobs.http import endpoints
from jobs.models import Job
from tests import processes
from tests.bindings.listening import listening
from tests.once import once_is_enough
from tests.processes import eventually
from workers.bindings.shared import tls
from workers.bindings.shared.tls import Certificate, UnusableCertificate

pytestmark = once_is_enough

redis = pytest.importorskip("redis")
trustme = pytest.importorskip("trustme")

HOST = "localhost"


class Authority:
    """Issues certificates into two files, as renewals do."""

    def __init__(self, folder):
        self._authority = trustme.CA()
        self.root, self.certificate, self.key = (
            folder / name for name in ("root.pem", "certificate.pem", "key.pem")
        )
        self._authority.cert_pem.write_to_path(str(self.root))
        self.issue()

    def issue(self, *, with_key=True) -> str:
        """Write a new certificate; return its serial number, as clients see it."""
        made = self._authority.issue_cert(HOST)
        for path, text in (
            (self.certificate, b"".join(blob.bytes() for blob in made.cert_chain_pems)),
            (self.key, made.private_key_pem.bytes() if with_key else self.key.read_bytes()),
        ):
            path.with_suffix(".new").write_bytes(text)
            path.with_suffix(".new").replace(path)
        seen = ssl._ssl._test_decode_cert(str(self.certificate))  # type: ignore[attr-defined]
        return str(seen["serialNumber"])

    @property
    def options(self):
        return {"TLS_CERTIFICATE": self.certificate, "TLS_KEY": self.key}

    def context(self):
        return ssl.create_default_context(cafile=str(self.root))


@pytest.fixture
def authority(tmp_path):
    return Authority(tmp_path)


def serial(context, port) -> str:
    with (
        processes.socket.create_connection((HOST, port), timeout=processes.PATIENCE) as plain,
        context.wrap_socket(plain, server_hostname=HOST) as connection,
    ):
        return str(connection.getpeercert()["serialNumber"])


@pytest.fixture
def agq(transactional_db, authority, tmp_path):
    options = {f"AGQ_{name}": value for name, value in authority.options.items()}
    with listening(tmp_path, "runagq", ALLOW_ANONYMOUS=1, **options) as process:
        yield process


@pytest.mark.slow
def test_redis_clients_speak_to_agq_over_tls(agq, authority):
    url = f"rediss://{HOST}:{agq.port}"
    with redis.Redis.from_url(url, ssl_ca_certs=str(authority.root)) as client:
        pushed = client.execute_command("LPUSH", "queue:ready", json.dumps({"plan": ["sort"]}))

    assert pushed == 1
    assert Job.objects.count() == 1
    eventually(lambda: endpoints.announced(HOST) == {"agq": f"rediss://127.0.0.1:{agq.port}"})
    plain = redis.Redis(port=agq.port, socket_timeout=processes.PATIENCE)
    with plain, pytest.raises(redis.RedisError):
        plain.ping()
    with redis.Redis.from_url(url) as distrustful, pytest.raises(redis.ConnectionError):
        distrustful.ping()


@pytest.mark.slow
def test_a_renewed_certificate_is_used_at_once_after_the_signal(agq, authority):
    first = serial(authority.context(), agq.port)
    url = f"rediss://{HOST}:{agq.port}"
    with redis.Redis.from_url(url, ssl_ca_certs=str(authority.root)) as client:
        assert client.ping()
        second = authority.issue()
        os.kill(agq.process.pid, signal.SIGHUP)
        eventually(lambda: serial(authority.context(), agq.port) == second)
        assert client.ping()  # on its existing connection

    assert first != second


@pytest.mark.slow
def test_a_renewal_that_does_not_fit_changes_nothing(agq, authority):
    first = serial(authority.context(), agq.port)

    authority.issue(with_key=False)
    os.kill(agq.process.pid, signal.SIGHUP)
    agq.wait_for("remains in use")

    assert serial(authority.context(), agq.port) == first


@pytest.mark.slow
def test_a_rota_worker_connects_over_tls(transactional_db, authority, tmp_path):
    options = {f"ROTA_{name}": value for name, value in authority.options.items()}
    hello = {
        "type": "heartbeat",
        "registration": {
            **{"worker_id": "tls", "hostname": "box", "os": "Linux"},
            **{"queues": ["default"], "specs": [{"id": "a", "checksum": "1"}]},
        },
    }

    async def registered(port):
        url = f"wss://{HOST}:{port}/work"
        async with websockets.connect(url, ssl=authority.context(), proxy=None) as socket:
            await socket.send(json.dumps(hello))
            return json.loads(await asyncio.wait_for(socket.recv(), processes.PATIENCE))

    with listening(tmp_path, "runrota", ALLOW_ANONYMOUS=1, **options) as server:
        assert asyncio.run(registered(server.port))["registered"] == "tls"
        eventually(
            lambda: endpoints.announced(HOST) == {"rota": f"wss://127.0.0.1:{server.port}/work"}
        )
        assert f"wss://127.0.0.1:{server.port}/work" in server.output


@pytest.mark.slow
@pytest.mark.parametrize("command", ["runagq", "runrota"])
@pytest.mark.parametrize(
    ("files", "problem"),
    [
        (["--tls-certificate", "/nowhere.pem"], "/nowhere.pem: [Errno 2] No such file"),
        (["--tls-key", "/nowhere.pem"], "There is a TLS key but no TLS certificate."),
    ],
)
def test_a_server_without_its_certificate_does_not_start(command, files, problem):
    done = subprocess.run(
        [sys.executable, "manage.py", command, "--port", "0", *files],
        cwd=processes.ROOT,
        env=processes.environment("sqlite://:memory:"),
        capture_output=True,
        text=True,
        timeout=processes.PATIENCE,
    )

    assert done.returncode == 1
    assert problem in done.stderr
    assert "Traceback" not in done.stderr


def test_a_certificate_may_bring_its_key_in_the_same_file(authority):
    authority.certificate.write_bytes(
        authority.key.read_bytes() + authority.certificate.read_bytes()
    )

    Certificate(str(authority.certificate))


def test_a_key_of_another_certificate_is_refused(authority):
    authority.issue(with_key=False)

    with pytest.raises(UnusableCertificate, match=r"certificate\.pem and .*key\.pem"):
        Certificate(str(authority.certificate), str(authority.key))


def test_changed_files_are_noticed_without_a_signal(authority, monkeypatch, caplog):
    monkeypatch.setattr(tls, "EVERY", 0.01)
    certificate = Certificate(str(authority.certificate), str(authority.key))

    async def until_it_is_read():
        async with tls.renewed(certificate):
            authority.issue()
            while "was read again" not in caplog.text:
                await asyncio.sleep(0.01)

    with caplog.at_level(logging.INFO, "workers.tls"):
        asyncio.run(asyncio.wait_for(until_it_is_read(), processes.PATIENCE))
