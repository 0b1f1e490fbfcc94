"""Who may use what workers say, on every protocol, and what their operators ask of them.

Rows of the table in `jobs.access`. On whom a key bound to a worker or to a label may use them is
carried out by `workers.access.admission`.
"""

from __future__ import annotations

from functools import partial

from jobs.access import Binding, Command, OfProject, OfWorker, declare
from jobs.models import Scope

PRODUCE, WORK, OPERATE = (Scope.PRODUCE,), (Scope.WORK,), (Scope.OPERATE,)
OBSERVE = (Scope.OBSERVE,)
READ, WRITE = (Scope.ADMIN_READ,), (Scope.ADMIN_WRITE,)
INSPECT = (Scope.WORK, Scope.OPERATE)
"""Workers look at each other over AGQ, and so do those who operate them (AGQ §9.2)."""
ANY_KEY: tuple[Scope, ...] = ()
OWN, SHARED, NOTHING = OfProject.OWN, OfProject.SHARED, OfProject.NOTHING
SELF, HELD = OfWorker.SELF, OfWorker.HELD

ojs = partial(Command, Binding.OJS)
admin = partial(Command, Binding.ADMIN)
flare = partial(Command, Binding.FLARE)
agq = partial(Command, Binding.AGQ)
rota = partial(Command, Binding.ROTA)

LATE = "A report on a job that another worker holds is ignored, as a late one is."

declare(
    ojs("workers.register", WORK, OWN, SELF),
    ojs("workers.deregister", WORK, OWN, SELF),
    ojs("workers.heartbeat", WORK, OWN, SELF),
    ojs("workers.fetch", WORK, OWN, SELF),
    ojs("workers.ack", WORK, OWN, HELD),
    ojs("workers.nack", WORK, OWN, HELD),
    ojs("progress.report", WORK, OWN, HELD, note=LATE),
    ojs("progress.retrieve", PRODUCE, OWN, reads=True),
    ojs("progress.stream", PRODUCE, OWN, reads=True),
    ojs("checkpoint.save", WORK, OWN, HELD),
    ojs("checkpoint.retrieve", WORK, OWN, HELD, reads=True),
    ojs("checkpoint.destroy", WORK, OWN, HELD),
    ojs("metrics.retrieve", OBSERVE, NOTHING, reads=True),
    ojs("autoscaling.retrieve", OBSERVE, NOTHING, reads=True),
    ojs("health.retrieve", (), SHARED, reads=True, is_open=True),
    ojs("readiness.retrieve", (), SHARED, reads=True, is_open=True),
    ojs("documentation.openapi_json", (), SHARED, reads=True, is_open=True),
    ojs("documentation.docs", (), SHARED, reads=True, is_open=True),
)
declare(
    admin("workers.list", READ, OWN, reads=True),
    admin("workers.retrieve", READ, OWN, reads=True, note="Its jobs without their arguments."),
    admin("workers.quiet", WRITE, OWN),
    admin("workers.resume", WRITE, OWN),
    admin("workers.terminate", WRITE, OWN),
    admin("workers.direct", WRITE, OWN),
    admin("workers.destroy", WRITE, OWN),
    admin("workers-bulk.quiet", WRITE, OWN),
    admin("workers-bulk.resume", WRITE, OWN),
    admin("workers-bulk.terminate", WRITE, OWN),
    admin("statistics.retrieve", READ, NOTHING, reads=True),
)
declare(
    flare("workers.register", WORK, OWN, SELF, note="Its recurring schedules are the project's."),
    flare("workers.poll", WORK, OWN, SELF),
    flare("workers.ack", WORK, OWN, HELD),
    flare("workers.heartbeat", WORK, OWN, HELD),
    flare("jobs.create", PRODUCE, OWN),
    flare("jobs.retrieve", PRODUCE, OWN, reads=True),
    flare("jobs.cancel", PRODUCE, OWN),
)
declare(
    agq("AUTH", (), SHARED, is_open=True),
    agq("HELLO", (), SHARED, is_open=True, note="Answered once a key is known."),
    agq("QUIT", (), SHARED, is_open=True),
    agq("CLIENT", (), SHARED, is_open=True),
    agq("COMMAND", (), SHARED, is_open=True),
    agq("PING", ANY_KEY, SHARED, reads=True),
    agq("ECHO", ANY_KEY, SHARED, reads=True),
    agq("SELECT", ANY_KEY, SHARED, reads=True),
    agq("INFO", ANY_KEY, SHARED, reads=True),
    agq("WORKER.REGISTER", WORK, OWN, SELF),
    agq("WORKER.HEARTBEAT", WORK, OWN, SELF),
    agq("WORKER.UNREGISTER", WORK, OWN, SELF),
    agq("BRPOP", WORK, OWN, SELF),
    agq("JOB.UPDATE", WORK, OWN, HELD),
    agq("LPUSH", PRODUCE, OWN),
    agq("KEYS", INSPECT, OWN, SELF, reads=True),
    agq("GET", INSPECT, OWN, SELF, reads=True, note="Of jobs: those that such a worker holds."),
    agq("TTL", INSPECT, OWN, SELF, reads=True, note="Of jobs: those that such a worker holds."),
    agq("EXISTS", INSPECT, OWN, SELF, reads=True, note="Of jobs: those that such a worker holds."),
    agq("SMEMBERS", INSPECT, OWN, SELF, reads=True),
    agq("SCAN", INSPECT, OWN, SELF, reads=True, note="Of jobs: those that such a worker holds."),
    agq("TYPE", INSPECT, OWN, SELF, reads=True, note="Of jobs: those that such a worker holds."),
    agq("PTTL", INSPECT, OWN, SELF, reads=True, note="Of jobs: those that such a worker holds."),
    agq("LLEN", INSPECT, OWN, reads=True),
    agq("MULTI", ANY_KEY, SHARED, note="Each command after it is asked about by itself."),
    agq("EXEC", ANY_KEY, SHARED, note="Each of its commands is asked about again."),
    agq("DISCARD", ANY_KEY, SHARED),
    agq("WATCH", ANY_KEY, SHARED, note="Refused."),
    agq("UNWATCH", ANY_KEY, SHARED),
    agq("RESET", (), SHARED, is_open=True),
    agq("WORKER.VERIFY", OPERATE, OWN, SELF),
)
declare(
    rota("handshake", WORK, SHARED),
    rota("registration", WORK, OWN, SELF),
    rota("status", WORK, OWN, HELD, note="A job that another worker holds is reported as lost."),
    rota("results", WORK, OWN, HELD),
    rota("wanted", WORK, OWN, SELF, note="Asks for assignments."),
)
