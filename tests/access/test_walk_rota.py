"""Every part of Rota × every kind of key, on real connections: answered as the table says."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from typing import Any

import pytest
from websockets.exceptions import InvalidStatus

from jobs import engine
from jobs.access import Command, commands
from jobs.models import Job
from jobs.spec.worker_ids import qualified
from tests.factories import JobErrorFactory, JobFactory, ago
from workers.bindings.rota.actions import PARTS, rule
from workers.bindings.rota.messages import Message
from workers.models import Worker

from .kinds import KINDS, LABEL, PROJECT, WORKER, Kind, Promise
from .lines import RotaLine
from .scenes import SECRET, TWINS_HOST, Scene, double, is_untouched, rows, scene, tells_of_twin

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def registration(s: Scene) -> dict[str, Any]:
    return {
        "worker_id": s.worker,
        "hostname": "box",
        "queues": [s.queue],
        "labels": [LABEL],
        "specs": [{"id": "email.send", "checksum": "v1"}],
    }


def said(part: str, s: Scene) -> dict[str, Any]:
    job_id = str(s.jobs["active"].pk)
    return {
        "registration": {"registration": registration(s)},
        "status": {"status": {"jobs": [{"job_id": job_id, "progress": 0.5}]}},
        "results": {"results": [{"job_id": job_id, "outcome": "succeeded"}]},
        "wanted": {"wanted": 1},
    }[part]


ALERT = {"message": "The disk is full.", "level": "error"}
OUTSIDE = ("unauthenticated", "token_expired")


def kept_its(promise: Promise, command: Command, answers: list[dict[str, Any]]) -> bool:
    shown = json.dumps(answers)
    match promise:
        case Promise.STRANGER:
            return not answers or answers[-1]["error"]["code"] in OUTSIDE
        case Promise.SCOPE:
            return f"needs the scope '{command.scopes[0]}'" in shown
        case Promise.UNTOUCHED:
            return SECRET not in shown
    return all(answer["type"] != "error" for answer in answers)


def walk(kind: Kind, connect: Callable[[str], RotaLine], mark: str) -> list[str]:
    key = kind.key(mark)
    s = scene(kind, mark)
    engine.register_specs({"email.send": "v1"})
    before, wrong = rows(), []
    handshake = rule("handshake")
    assert handshake is not None
    # The key's rights on connecting; they may change afterwards.
    at_first = dataclasses.replace(kind, became=None, is_good=True).promised(handshake)
    try:
        line = connect(key)
    except InvalidStatus as refusal:
        status = {Promise.STRANGER: 401, Promise.SCOPE: 403}.get(at_first)
        if refusal.response.status_code != status:
            wrong.append(f"handshake: {at_first}: {refusal.response.status_code}")
        return [f"{kind.name}: {each}" for each in wrong]
    if at_first is not Promise.DONE:
        wrong.append(f"handshake: {at_first}: it was let in")
    if kind.became:
        line(registration=registration(s), wanted=0)
        before = rows()
        kind.turn()
    for part in ("registration", "status", "wanted", "results"):
        declared = rule(part)
        assert declared is not None
        promise = kind.promised(declared)
        answers = line(**said(part, s))
        if not kept_its(promise, declared, answers):
            wrong.append(f"{part}: {promise}: {answers}")
        if promise is Promise.DONE:
            before = rows()
        elif not is_untouched(before):
            wrong.append(f"{part} changes what it must not")
    if kind.became and kind.promised(handshake) is Promise.STRANGER and not line.is_closed():
        wrong.append("the connection is not closed")
    return [f"{kind.name}: {each}" for each in wrong]


def test_every_part_keeps_what_the_table_promises(rota):
    wrong = [each for number, kind in enumerate(KINDS) for each in walk(kind, rota, f"-{number}")]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "bound", [{}, {"worker_id": WORKER}, {"label": LABEL}], ids=lambda bound: "".join(bound)
)
def test_no_part_tells_a_project_that_another_has_a_worker_of_the_same_id(rota, bound):
    kind = Kind("of a project", bound={"project": PROJECT} | bound)
    key = kind.key()
    s = scene(kind)
    double(s)
    engine.register_specs({"email.send": "v1"})
    line = rota(key)

    job_id = str(s.jobs["active"].pk)
    answers = line(
        registration=registration(s), status={"jobs": [{"job_id": job_id}], "alerts": [ALERT]}
    )
    # It has failed before, as the same worker.
    JobFactory(project=PROJECT, queue=s.queue, state="retryable", attempt=1, scheduled_at=ago(9))
    retried = Job.objects.get(state="retryable")
    JobErrorFactory(job=retried, worker_id=qualified(s.worker, PROJECT))
    answers += line(wanted=2)
    answers += [line.hear(), line.hear()]
    answers += line(results=[{"job_id": job_id, "outcome": "succeeded"}], status={"state": "quiet"})

    assert [answer["type"] for answer in answers].count("assignment") == 2
    assert '"worker_id": "mine"' in json.dumps(answers), "in the error of the first attempt"
    assert answers[-1]["results"][0]["ok"] is True
    assert not tells_of_twin(json.dumps(answers)), answers
    twin = Worker.objects.get(pk=s.worker)
    assert (twin.project, twin.state, twin.hostname) == ("twin", "running", TWINS_HOST)
    assert Worker.objects.get(project=PROJECT).state == "quiet"


def test_every_part_of_a_message_is_declared_and_nothing_else_is():
    assert {field.name for field in dataclasses.fields(Message)} == PARTS.keys()
    assert {row.name for row in commands("Rota")} == {"handshake", *PARTS.values()}
