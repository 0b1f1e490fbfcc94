"""Rate limits, and job specs."""

from __future__ import annotations

from jobs.errors import NotFound
from jobs.spec.operator_requests import LimitsOverride, RegisterSpecs

from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import COUNT, TIME, array, boolean, enum, free, obj, ref, text

SPEC = {
    "type": "email.send",
    "checksum": "sha256:9f86d081",
    "registered_at": "2026-02-12T10:30:00.000Z",
}
NO_LIMIT = refuses(NotFound, "No job has used this key.")
LIMIT = obj(
    "key on_limit waiting_count",
    key=text(),
    concurrency=free(),
    rate=free(),
    throttle=free(),
    held_until=TIME,
    override_expires_at=TIME,
    on_limit=enum("wait", "reschedule", "drop"),
    waiting_count=COUNT,
)
LIMITED = {
    "key": "api.example.com",
    "rate": {"limit": 100, "period": "PT1M", "current_count": 17},
    "on_limit": "wait",
    "waiting_count": 3,
}

OPERATIONS = {
    ("GET", "/ojs/v1/rate-limits"): Operation(
        "Rate limits",
        "List rate limits and their current state",
        {
            200: Reply(
                "Every key that was used.",
                obj("items pagination", items=array(LIMIT), pagination=ref("Pagination")),
                {
                    "items": [LIMITED],
                    "pagination": {"total": 1, "limit": 50, "offset": 0, "has_more": False},
                },
            )
        },
        "OJS rate limiting §10.1.",
    ),
    ("GET", "/ojs/v1/rate-limits/{key}"): Operation(
        "Rate limits",
        "Show a rate limit and its current state",
        {200: Reply("It.", LIMIT, LIMITED)},
        refusals=NO_LIMIT,
    ),
    ("PUT", "/ojs/v1/rate-limits/{key}"): Operation(
        "Rate limits",
        "Put other limits over a key's own",
        {200: Reply("It, as it is now.", LIMIT, LIMITED)},
        "Until `expires_at`, or for good; also before a job uses the key (rate limiting §10.2).",
        body=LimitsOverride,
        example={"rate": {"limit": 10, "period": "PT1M"}, "expires_at": "+PT1H"},
    ),
    ("DELETE", "/ojs/v1/rate-limits/{key}/override"): Operation(
        "Rate limits",
        "End the override of a rate limit",
        {200: Reply("It, as it is now.", LIMIT, LIMITED)},
        refusals=NO_LIMIT,
    ),
    ("GET", "/ojs/v1/job-specs"): Operation(
        "Job specs",
        "List job specs",
        {
            200: Reply(
                "By type.",
                obj(
                    "specs pagination",
                    specs=array(
                        obj(
                            "type checksum registered_at",
                            type=text(),
                            checksum=text(),
                            registered_at=TIME,
                        )
                    ),
                    pagination=ref("Pagination"),
                ),
                {
                    "specs": [SPEC],
                    "pagination": {"total": 1, "limit": 50, "offset": 0, "has_more": False},
                },
            )
        },
    ),
    ("POST", "/ojs/v1/job-specs"): Operation(
        "Job specs",
        "Register the job specs of a deployment",
        {
            200: Reply(
                "All of them.",
                obj("registered unchanged", registered=COUNT, unchanged=COUNT),
                {"registered": 1, "unchanged": 0},
            )
        },
        "Only workers with a matching checksum of a type get its jobs.",
        body=RegisterSpecs,
        example={"specs": {"email": "sha256:9f86d081"}},
    ),
    ("DELETE", "/ojs/v1/job-specs/{name}"): Operation(
        "Job specs",
        "Withdraw one",
        {
            200: Reply(
                "The spec was deleted.",
                obj("type deleted", type=text(), deleted=boolean()),
                {"type": "email.send", "deleted": True},
            )
        },
        refusals=refuses(NotFound, "There is no spec of this type."),
    ),
}
ALIASES = {
    ("PUT", "/ojs/v1/rate-limits/{key}/override"): ("PUT", "/ojs/v1/rate-limits/{key}"),
}
