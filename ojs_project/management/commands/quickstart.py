"""Start a complete job server to try out: one command, and one Ctrl-C to end it."""

from __future__ import annotations

import contextlib
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from django.core.management import call_command
from django.core.management.base import CommandError
from django.db import DatabaseError, InterfaceError, connections

from jobs.conf import ojs_settings, protocols
from jobs.management import base
from ojs_project import access, beside, demo_jobs, quickstart_environment
from ojs_project.announcement import Announcement
from ojs_project.console import Console
from ojs_project.environment import data_folder
from ojs_project.health import NoAnswer, health
from ojs_project.quickstart_environment import Address, Unusable
from ojs_project.services import server_name, services
from ojs_project.status import Reporter
from ojs_project.stopping import Stopping
from ojs_project.supervisor import ServiceFailed, Supervisor

START_TIMEOUT = 60
"""Seconds after the last start until everything must be healthy; many times what it takes."""
TICK = 0.1


class Command(base.Command):
    help = __doc__ or ""

    def add_arguments(self, parser: Any) -> None:
        quickstart_environment.add_arguments(parser)

    def handle(self, *args: Any, **options: Any) -> None:
        if not quickstart_environment.prepared:
            raise CommandError("Start it as `python manage.py quickstart`.")
        self.console = Console(sys.stdout)
        self.stopping = Stopping()
        self.stopping.listen()
        # Shared with the threads beside this one.
        self.over = threading.Event()
        self.demo = not options["no_demo"]
        try:
            self.address = Address.find(options["host"], options["port"])
            self.address.check_free()
            self._be_found()
        except (Unusable, ServiceFailed) as problem:
            raise CommandError(str(problem)) from None

    def _be_found(self) -> None:
        """Run everything, and meanwhile let commands in other terminals find the configuration."""
        try:
            found_by = beside.be_found(os.environ)
        except OSError as problem:
            raise Unusable(
                f"Cannot write to {data_folder(os.environ)}: {problem.strerror}."
            ) from None
        try:
            self._prepare_database()
            self._run()
        finally:
            beside.be_gone(found_by)

    def _prepare_database(self) -> None:
        self.console.say("Starting…")
        try:
            call_command("migrate", interactive=False, verbosity=0)
            self.operator = access.ensure_operator(os.environ)
            needs_key = self.demo and not ojs_settings.ALLOW_ANONYMOUS
            self.token = access.make_demonstration_key(self._key_name) if needs_key else ""
        except (DatabaseError, InterfaceError) as problem:
            raise Unusable(
                f"The database cannot be used: {' '.join(str(problem).split())}"
            ) from None
        finally:
            connections.close_all()

    @property
    def _key_name(self) -> str:
        return f"quickstart on {self.address.host}:{self.address.port}"

    def _run(self) -> None:
        logs = self._empty_logs()
        self.supervisor = Supervisor(
            services(self.address, logs, demo=self.demo, token=self.token, environ=os.environ),
            self.stopping,
        )
        companions: list[threading.Thread] = []
        try:
            self.supervisor.start()
            if self._wait_until_well():
                self._announce(logs)
                companions = self._start_companions()
                while not self.stopping.asked:
                    self._revive(starting=False)
                    self.stopping.wait(TICK)
        finally:
            self._stop_everything(companions)

    def _empty_logs(self) -> Path:
        logs = data_folder(os.environ) / "logs"
        try:
            logs.mkdir(parents=True, exist_ok=True)
            for old in logs.glob("*.log"):
                old.write_bytes(b"")
        except OSError as problem:
            raise Unusable(f"Cannot write to {logs}: {problem.strerror}.") from None
        return logs

    def _wait_until_well(self) -> bool:
        """Wait until server and reaper are up; False if stopped meanwhile.

        Raises:
            ServiceFailed: one of them will not start.
            Unusable: they run, but not as they should.
        """
        answer = "none"
        while not self.stopping.asked:
            self._revive(starting=True)
            try:
                found = health(self.address.url)
            except NoAnswer as problem:
                answer = str(problem)
            else:
                if found.get("status") == "ok":
                    return True
                answer = str(found)
            if time.monotonic() > self.supervisor.last_start + START_TIMEOUT:
                raise Unusable(
                    f"The server was not well after {START_TIMEOUT} s. Its last answer: {answer}"
                )
            self.stopping.wait(TICK)
        return False

    def _revive(self, *, starting: bool) -> None:
        for sentence in self.supervisor.revive(starting=starting):
            self.console.say(sentence)

    def _announce(self, logs: Path) -> None:
        worker = self.supervisor.services[-1].process
        names = {service.name for service in self.supervisor.services}
        announcement = Announcement(
            address=self.address,
            operator=self.operator,
            logs=logs,
            token=self.token,
            worker_pid=worker.pid if self.demo and worker else None,
            served=frozenset(one.name for one in protocols() if server_name(one) in names),
        )
        self.console.say("\n".join(announcement.lines()))

    def _start_companions(self) -> list[threading.Thread]:
        reporter = Reporter(self.console, self.address.url, self.over)
        companions = [threading.Thread(target=reporter.run, daemon=True)]
        if self.demo:
            trickle = threading.Thread(target=demo_jobs.trickle, args=[self.over], daemon=True)
            companions.append(trickle)
        for companion in companions:
            companion.start()
        return companions

    def _stop_everything(self, companions: list[threading.Thread]) -> None:
        self.over.set()
        self.console.end_status()
        self.console.say("Stopping…")
        self.supervisor.stop(self.console.say)
        for companion in companions:
            companion.join(3)
        if self.token:
            with contextlib.suppress(DatabaseError, InterfaceError):
                access.remove_demonstration_key(self._key_name)
        self.console.say("Everything is stopped.")
