"""Kinds of keys, and the answers that the table specifies for each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from django.utils import timezone

from jobs.access import Command, OfProject, OfWorker
from jobs.http.authentication import forget_keys, make_key
from jobs.models import ApiKey, Scope
from tests.factories import ago

ALL = [str(scope) for scope in Scope]
PROJECT, WORKER, LABEL = "acme", "mine", "gpu:true"
"""The worker, label and project to which bound keys are bound."""


class Promise(Enum):
    """The kind of response to a command."""

    STRANGER = "no key that opens anything"
    SCOPE = "the key lacks the scope"
    ALL_PROJECTS = "it concerns all projects"
    UNTOUCHED = "nothing of others is shown or changed"
    DONE = "it is done"


@dataclass
class Kind:
    name: str
    scopes: list[str] | None = field(default_factory=lambda: list(ALL))
    """None for requests without a key."""
    bound: dict[str, str] = field(default_factory=dict)
    on_others: bool = False
    """Used on objects of others."""
    became: Callable[[Any], None] | None = None
    """What happens to the key after its first use."""
    is_good: bool = True
    record: Any = None

    def key(self, mark: str = "") -> str:
        """Create such a key.

        Args:
            mark: distinguishes the worker it may be bound to from those of other scenes.
        """
        if self.scopes is None:
            return ""
        bound = dict(self.bound)
        if "worker_id" in bound:
            bound["worker_id"] += mark
        self.record, key = make_key(self.name, scopes=self.scopes, **bound)
        return key

    def turn(self) -> None:
        """Apply to the key what is to happen to it after its first use."""
        if self.became is not None:
            self.became(ApiKey.objects.filter(pk=self.record.pk))
            forget_keys()

    def turn_back(self) -> None:
        if self.became is not None:
            self.record.save()
            forget_keys()

    def promised(self, command: Command) -> Promise:
        """The answer that the table specifies."""
        if command.is_open:
            return Promise.DONE
        if self.scopes is None or not self.is_good:
            return Promise.STRANGER
        if command.scopes and not any(self.has(scope, command) for scope in command.scopes):
            return Promise.SCOPE
        if "project" in self.bound and command.of_project is OfProject.NOTHING:
            return Promise.ALL_PROJECTS
        if self.on_others and (
            ("project" in self.bound and command.of_project is OfProject.OWN)
            or ("project" not in self.bound and command.of_worker is not OfWorker.ANYTHING)
        ):
            return Promise.UNTOUCHED
        return Promise.DONE

    def has(self, scope: Scope, command: Command) -> bool:
        """Written out instead of computed: this is what README says about scopes."""
        held = set() if self.became is narrow else set(self.scopes or ())
        if scope in held:
            return True
        if scope in (Scope.PRODUCE, Scope.WORK):
            return (Scope.DATA_READ if command.reads else Scope.DATA_WRITE) in held
        return Scope.OPERATE in held and scope in (
            Scope.ADMIN_READ,
            Scope.ADMIN_WRITE,
            Scope.ADMIN_PURGE,
        )

    @property
    def sees_arguments(self) -> bool:
        clear = {
            Scope.PRODUCE,
            Scope.WORK,
            Scope.DATA_READ,
            Scope.DATA_WRITE,
            Scope.ADMIN_ARGS,
        }
        return not clear.isdisjoint(self.scopes or ())


def revoke(keys: Any) -> None:
    keys.update(revoked_at=timezone.now())


def expire(keys: Any) -> None:
    keys.update(expires_at=ago(1))


def narrow(keys: Any) -> None:
    keys.update(scopes=[])


KINDS = [
    Kind("no key", None),
    Kind("no scope", []),
    *(Kind(str(scope), [str(scope)]) for scope in Scope),
    Kind("everything"),
    Kind("of a worker", bound={"worker_id": WORKER}),
    Kind("of another worker", bound={"worker_id": WORKER}, on_others=True),
    Kind("of a label", bound={"label": LABEL}),
    Kind("of another label", bound={"label": LABEL}, on_others=True),
    Kind("of a project", bound={"project": PROJECT}),
    Kind("of another project", bound={"project": PROJECT}, on_others=True),
    Kind("revoked", became=revoke, is_good=False),
    Kind("expired", became=expire, is_good=False),
    Kind("narrowed", became=narrow),
]
