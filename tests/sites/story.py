"""What happens in every site: orders, their jobs, two kinds of worker, an operator at the admin."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx

from tests.operators import forms
from tests.processes import OURS, PATIENCE, Running, eventually, free_port, running

from . import generate, look
from .conditions import Condition

WORKER = "shop-1"
LISTS = ("ojs_jobs/job/", "ojs_jobs/queue/", "ojs_jobs/deadjob/", "ojs_workers/worker/")
DASHBOARD = "ojs_workers/dashboard/"


@dataclass
class Site:
    """A condition's site in a folder, run by a Python that has what it needs."""

    condition: Condition
    folder: Path
    python: str
    databases: Mapping[str, Any]
    """The site's `DATABASES`, if they are not SQLite files in its folder."""
    checkout: Path | None = None
    """Where the apps come from, if not from a wheel that the Python has."""

    @property
    def environment(self) -> dict[str, str]:
        inherited = {
            name: text
            for name, text in os.environ.items()
            if not name.startswith((*OURS, "PYTHON", "VIRTUAL_ENV"))
        }
        path = [self.folder, *([self.checkout] if self.checkout else [])]
        variables = {
            "PYTHONPATH": os.pathsep.join(map(str, path)),
            "PYTHONUNBUFFERED": "1",
            "DJANGO_SETTINGS_MODULE": "site_settings",
            "SITE_DATABASES": json.dumps(dict(self.databases)),
        }
        if self.checkout:
            variables["SITE_TEMPLATES"] = str(self.checkout / "templates")
        return inherited | variables

    def run(self, *arguments: str) -> str:
        done = subprocess.run(
            [self.python, *arguments],
            cwd=self.folder,
            env=self.environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=PATIENCE,
            check=False,
        )
        assert done.returncode == 0, f"{arguments}: {done.stdout}"
        return done.stdout

    @contextmanager
    def server(self) -> Iterator[str]:
        """Its server; yields the URL once it answers."""
        application = self.condition.server.replace(" ", "_")
        interface = "wsgi" if application == "wsgi" else "asgi"
        port = str(free_port())
        command = [str(Path(self.python).with_name("granian")), "--host", "127.0.0.1"]
        command += ["--port", port, "--workers", "1", "--interface", interface]
        if interface == "wsgi":
            command += ["--blocking-threads", "8", "--no-ws"]
        url = f"http://127.0.0.1:{port}"
        log = self.folder / "server.log"
        command.append(f"servers:{application}")
        with running(command, log, self.environment, self.folder) as started:

            def answers() -> bool:
                assert started.process.poll() is None, started.output
                try:
                    return httpx.get(f"{url}/ojs/v1/health", timeout=PATIENCE).is_success
                except httpx.TransportError:
                    return False

            eventually(answers, lambda: started.output)
            try:
                yield url
            except BaseException:
                print(started.output)
                raise

    @contextmanager
    def worker(self, url: str, key: str) -> Iterator[Running]:
        """A worker over HTTP."""
        command = [self.python, "-m", "django", "runjobworker", "--url", url]
        command += ["--worker-id", WORKER]
        environment = self.environment | {"OJS_AUTH_TOKEN": key}
        with running(command, self.folder / "worker.log", environment, self.folder) as started:
            yield started


def live_through(site: Site) -> None:
    """The whole story.

    Raises:
        AssertionError: with what the process concerned has written.
    """
    generate.write(site.folder, site.condition)
    key = site.run("prepare.py").splitlines()[-1]
    with site.server() as url, httpx.Client(base_url=url, timeout=PATIENCE) as client:
        declined = client.post("/orders", data={"declined": "yes"})
        assert declined.status_code == 500
        assert client.get("/orders").json() == {"shipped": [], "jobs": []}

        made = client.post("/orders").json()
        assert [state for _, state in made["jobs"]] == ["available"]
        site.run("-m", "django", "runjobworker", "--burst")
        assert shipped(client) == ([1], ["completed"])

        with site.worker(url, key) as worker:
            client.post("/orders")
            eventually(
                lambda: shipped(client) == ([1, 1], ["completed"] * 2), lambda: worker.output
            )
            operator = Operator(site.condition, client)
            operator.logs_in()
            operator.looks_around(made["jobs"][0][0])
            if site.condition.is_looked_at:
                look.at(operator.pages(made["jobs"][0][0]), client)
            operator.directs("quiet")
            worker.wait_for("From running to quiet")
            client.post("/orders")
            operator.directs("terminate")
            assert worker.wait() == 0, worker.output
        assert shipped(client) == ([1, 1, 0], ["completed", "completed", "available"])


def shipped(client: httpx.Client) -> tuple[list[int], list[str]]:
    found = client.get("/orders").json()
    return found["shipped"], [state for _, state in found["jobs"]]


@dataclass
class Operator:
    condition: Condition
    client: httpx.Client

    def logs_in(self) -> None:
        dashboard = self.condition.admin + DASHBOARD
        asked = self.client.get(dashboard)
        assert asked.status_code == 302, asked
        page = self.client.get(asked.headers["Location"])
        fields = next(form.fields for form in forms(page) if "username" in form.fields)
        fields |= {"username": "boss@example.com", "password": "boss"}
        sent = self.client.post(str(page.url), data=fields, headers={"Referer": str(page.url)})
        assert sent.headers.get("Location") == dashboard, sent.text

    def looks_around(self, job: str) -> None:
        """Opens the dashboard, a job and the lists, and what the condition adds."""
        for path in self.pages(job):
            self.sees(path)
        admin = self.condition.admin
        for path, text in self.condition.pages.items():
            found = self.sees(path.format(dashboard=admin + DASHBOARD))
            assert text in found.text, f"{path} does not show {text!r}: {found.text}"
        assert "shop.ship" in self.sees(f"{admin}ojs_jobs/job/{job}/change/").text

    def pages(self, job: str) -> list[str]:
        admin = self.condition.admin
        pages = [DASHBOARD, f"ojs_jobs/job/{job}/change/", "ojs_jobs/job/add/", *LISTS]
        return [admin, *(admin + page for page in pages)]

    def sees(self, path: str) -> httpx.Response:
        page = self.client.get(path)
        assert page.status_code == 200, f"{path}: {page.status_code} {page.text}"
        return page

    def directs(self, order: str) -> None:
        """Ticks the live worker in the list, chooses an order, and confirms it."""
        path = f"{self.condition.admin}ojs_workers/worker/"
        page = self.sees(path)
        assert f'value="{WORKER}"' in page.text, page.text
        chosen = {"action": order, "index": "0", "_selected_action": WORKER}
        chosen["csrfmiddlewaretoken"] = self.client.cookies["csrftoken"]
        asked = self.client.post(path, data=chosen, headers={"Referer": str(page.url)})
        assert asked.status_code == 200, asked
        form = next(form for form in forms(asked) if "confirmed" in form.fields)
        sent = self.client.post(
            form.action or path, data=form.fields, headers={"Referer": str(asked.url)}
        )
        assert sent.status_code == 302, sent.text
        self.sees(sent.headers["Location"])
