"""A simulated fleet: workers that send heartbeats over HTTP and obey, and a reaper."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

from tests.factories import JobFactory, WorkerFactory
from workers.chores import reaper
from workers.fleet import orders as fleet
from workers.models import Worker


class Fleet:
    """Workers by name, each with the jobs it holds."""

    def __init__(self, api: Any, count: int, **fields: Any) -> None:
        self.api = api
        self.names = [f"w{number:03}" for number in range(count)]
        self.states = dict.fromkeys(self.names, "running")
        for name in self.names:
            # None is silent because the heartbeats of the others take long.
            WorkerFactory(worker_id=name, **{"heartbeat_timeout": timedelta(hours=1)} | fields)
        self.capacities: list[dict[str, int]] = []

    def give(self, name: str) -> Any:
        return JobFactory(active=True, reserved_by=name)

    def beat(self, *names: str) -> None:
        """Each reports its state, gets the desired one, and adopts it."""
        for name in names or self.names:
            if self.states[name] == "gone":
                continue
            body = {"worker_id": name, "state": self.states[name]}
            self.states[name] = self.api.send("workers/heartbeat", body).json()["state"]
            if self.states[name] == "terminate":
                self.api.send("workers/deregister", {"worker_id": name})
                self.states[name] = "gone"

    def sweep(self) -> None:
        reaper.sweep()
        self.capacities.append(fleet.capacity(fleet.serving()))

    def round(self, *names: str) -> None:
        self.beat(*names)
        self.sweep()

    def in_state(self, state: str) -> list[str]:
        return [name for name, found in self.states.items() if found == state]


def directives() -> dict[str, str]:
    return dict(Worker.objects.order_by("pk").values_list("pk", "directive"))
