"""Every command of AGQ × every kind of key, on real connections: answered as the table says."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from jobs.access import Command, commands
from jobs.spec.worker_ids import qualified
from workers.bindings.agq.commands import known, rule
from workers.models import Worker

from .kinds import KINDS, LABEL, PROJECT, WORKER, Kind, Promise
from .lines import AGQLine
from .scenes import (
    SECRET,
    TWINS_HOST,
    Scene,
    double,
    is_untouched,
    rows,
    scene,
    tells_of_twin,
)

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]


def registered(s: Scene) -> str:
    return json.dumps(
        {
            "worker_id": s.worker,
            "hostname": "box",
            "platform": "linux",
            "agw_version": "1",
            "capabilities": {"tools": ["jq"]},
            "tags": {"gpu": True},
        }
    )


def reading(word: str) -> Callable[[Scene], list[list[str]]]:
    return lambda s: [
        [word, f"worker:{s.worker}:metadata"],
        [word, f"worker:{s.worker}:alive"],
        [word, f"job:{s.jobs['active'].pk}:worker"],
    ]


SAID: dict[str, Callable[[Scene], list[list[str]]]] = {
    "AUTH": lambda s: [],
    "HELLO": lambda s: [],
    "ECHO": lambda s: [["ECHO", "a"]],
    "SELECT": lambda s: [["SELECT", "0"]],
    "CLIENT": lambda s: [["CLIENT", "SETNAME", s.worker]],
    "WORKER.HEARTBEAT": lambda s: [["WORKER.HEARTBEAT", s.worker, '{"cpu": 1}']],
    "JOB.UPDATE": lambda s: [
        ["JOB.UPDATE", job, json.dumps(said | {"worker_id": s.worker})]
        for job in [str(s.jobs["active"].pk)]
        for said in ({"status": "running"}, {"progress_percent": 5}, {"status": "completed"})
    ],
    "BRPOP": lambda s: [["BRPOP", f"queue:{s.queue}", "0.01"]],
    "LPUSH": lambda s: [["LPUSH", f"queue:{s.queue}", '{"plan": 1}']],
    "KEYS": lambda s: [["KEYS", "*"]],
    "GET": reading("GET"),
    "TTL": reading("TTL"),
    "EXISTS": reading("EXISTS"),
    "TYPE": reading("TYPE"),
    "PTTL": reading("PTTL"),
    "SCAN": lambda s: [["SCAN", "0"]],
    "LLEN": lambda s: [["LLEN", f"queue:{s.queue}"]],
    "MULTI": lambda s: [["MULTI"], ["DISCARD"]],
    "DISCARD": lambda s: [["MULTI"], ["DISCARD"]],
    "EXEC": lambda s: [["MULTI"], ["PING"], ["EXEC"]],
    "WATCH": lambda s: [["WATCH", "a"]],
    "SMEMBERS": lambda s: [["SMEMBERS", "capability:jq:workers"]],
    # Whether the question is sent is enough: a worker without the ability gets none.
    "WORKER.VERIFY": lambda s: [["WORKER.VERIFY", "no-such-capability", "{}"]],
    "WORKER.REGISTER": lambda s: [["WORKER.REGISTER", registered(s)]],
    "WORKER.UNREGISTER": lambda s: [["WORKER.UNREGISTER", s.worker]],
}
"""The arguments of commands that need any."""
LAST = ("BRPOP", "JOB.UPDATE", "WORKER.REGISTER", "WORKER.UNREGISTER", "RESET", "QUIT")


def in_order() -> list[str]:
    return [*(word for word in known() if word not in LAST), *LAST]


def kept_its(promise: Promise, command: Command, answers: list[Any], s: Scene) -> bool:
    shown = json.dumps(answers)
    refused = [isinstance(answer, str) and answer.startswith("-") for answer in answers]
    match promise:
        case Promise.STRANGER:
            return all("-NOAUTH" in str(answer) or answer == "" for answer in answers)
        case Promise.SCOPE:
            wanted = f"needs the scope '{command.scopes[0]}'"
            return all("-NOPERM" in str(answer) and wanted in answer for answer in answers)
        case Promise.UNTOUCHED:
            return SECRET not in shown and not (command.reads and s.worker in shown)
    if command.name == "WORKER.VERIFY":
        return "No active worker has the capability" in shown
    if command.name == "WATCH":
        return "WATCH is not supported" in shown
    return not any(refused) and (not command.reads or None not in answers)


def walk(kind: Kind, connect: Callable[[], AGQLine], mark: str) -> list[str]:
    key = kind.key(mark)
    s = scene(kind, mark)

    def begin() -> AGQLine:
        line = connect()
        if key:
            assert line("AUTH", key) == "OK"
        line("CLIENT", "SETNAME", s.worker)
        kind.turn()
        return line

    line, wrong = begin(), []
    for word in in_order():
        declared = rule(word)
        assert declared is not None, word
        promise = kind.promised(declared)
        if promise is Promise.DONE and not kind.is_good:
            continue  # open without a key, which is a kind of its own
        before = rows()
        said = SAID.get(word, lambda s, word=word: [[word]])(s)
        if promise is Promise.STRANGER:
            said = said[:1]  # it is the last reply
        answers = [line(*words) for words in said]
        if promise is Promise.STRANGER and kind.record:
            assert line.hear() == "", "the connection is ended"
            kind.turn_back()
            line = begin()
        # The key of another project may have a worker of the same id.
        own = kind.bound.get("project", "") if kind.on_others else ""
        if promise is not Promise.DONE and not is_untouched(before, own):
            wrong.append(f"{word} changes what it must not")
        if answers and not kept_its(promise, declared, answers, s):
            wrong.append(f"{word}: {promise}: {answers}")
    return [f"{kind.name}: {each}" for each in wrong]


def test_every_word_keeps_what_the_table_promises(agq):
    wrong = [each for number, kind in enumerate(KINDS) for each in walk(kind, agq, f"-{number}")]

    assert not wrong, "\n".join(wrong)


OF_A_PROJECT = {"project": PROJECT}


@pytest.mark.parametrize(
    "bound", [{}, {"worker_id": WORKER}, {"label": LABEL}], ids=lambda bound: "".join(bound)
)
def test_no_word_tells_a_project_that_another_has_a_worker_of_the_same_id(agq, bound):
    kind = Kind("of a project", bound=OF_A_PROJECT | bound)
    key = kind.key()
    s = scene(kind)
    double(s)
    line = agq(key)
    # Recognized by the key, like the worker that registered with it.
    Worker.objects.filter(project=PROJECT).update(session=f"key {kind.record.pk}")
    line("CLIENT", "SETNAME", s.worker)

    telling = []
    for word in in_order():
        for words in SAID.get(word, lambda s, word=word: [[word]])(s):
            answer = line(*words)
            if tells_of_twin(json.dumps(answer)):
                telling.append(f"{words}: {answer}")
            declared = rule(word)
            assert declared is not None, word
            if not kept_its(Promise.DONE, declared, [answer], s):
                telling.append(f"{words}: not done: {answer}")

    assert not telling, "\n".join(telling)
    twin = Worker.objects.get(pk=s.worker)
    assert (twin.project, twin.state, twin.hostname) == ("twin", "running", TWINS_HOST)
    assert Worker.objects.get(project=PROJECT).pk == qualified(s.worker, PROJECT)


def test_every_word_is_declared_and_nothing_else_is():
    assert [word for word in known() if rule(word) is None] == []
    assert {row.name for row in commands("AGQ")} == set(known())
