"""Webhook subscriptions and their deliveries."""

from __future__ import annotations

from jobs.errors import Conflict, NotFound, NotInstalled, TooManyConnections
from jobs.spec.operator_requests import Reason

from ...models import DeliveryState, WebhookFormat
from ...webhooks.requests import ChangeSubscription, NewSubscription, RotateSecret
from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import COUNT, TIME, array, boolean, enum, free, integer, nullable, obj, ref, text

BASE = "/ojs/v1/webhooks/subscriptions"
ONE = f"{BASE}/{{subscription_id}}"
DELIVERIES = "/ojs/v1/webhooks/deliveries"
DELIVERY = f"{DELIVERIES}/{{delivery_id}}"

ABOUT = {
    "id": text(),
    "url": text(),
    "events": array(text()),
    "filter": obj(queues=array(text()), job_types=array(text())),
    "active": boolean(),
    "disabled_reason": text("Why the server disabled it."),
    "metadata": free(),
    "format": enum(*WebhookFormat.values),
    "timeout": integer("Seconds that an attempt may take."),
    "created_at": TIME,
    "delivered_at": text("When a delivery last succeeded.", format="date-time"),
    "failing_since": text("The first failure since then.", format="date-time"),
    "previous_secret_until": text(
        "Until when deliveries are signed with the previous secret as well.", format="date-time"
    ),
}
ALWAYS = "id url events active metadata format timeout created_at"
SUBSCRIPTION = obj(ALWAYS, **ABOUT)
REPLIED = obj(f"{ALWAYS} subscription", **ABOUT, subscription=SUBSCRIPTION)
SECRET = {"secret": text("Not shown again.")}
WITH_SECRET = obj(
    f"{ALWAYS} secret subscription",
    **ABOUT,
    **SECRET,
    subscription=obj(f"{ALWAYS} secret", **ABOUT, **SECRET),
)
NAME = "sub_019539a4-b68c-7def-8000-aabbccddeeff"
GIVEN = {
    "id": NAME,
    "url": "https://api.example.com/webhooks/ojs",
    "events": ["job.completed", "job.failed"],
    "active": True,
    "metadata": {"owner": "platform-team"},
    "format": "ojs",
    "timeout": 30,
    "created_at": "2026-02-15T22:00:00.000Z",
    "filter": {"queues": ["payments"]},
}
MADE = GIVEN | {"secret": "whsec_k3j4h5g6f7d8s9a0k3j4h5g6f7d8s9a0"}
ATTEMPT = obj(
    "at duration_ms",
    at=TIME,
    duration_ms=COUNT,
    status=integer("Of the response."),
    error=text(),
)
ABOUT_DELIVERY = {
    "id": text("The same for all attempts."),
    "subscription_id": text(),
    "event_id": text(),
    "event_type": text(),
    "subject": text(),
    "status": enum(*DeliveryState.values),
    "tries": COUNT,
    "created_at": TIME,
    "last_status_code": nullable(integer()),
    "last_error": nullable(text()),
    "attempts": array(ATTEMPT, maxItems=20),
    "next_attempt_at": TIME,
    "finished_at": TIME,
}
ALWAYS_OF_DELIVERY = (
    "id subscription_id event_id event_type subject status tries created_at last_status_code "
    "last_error attempts"
)
SENT = {
    "id": "del_019539a4-b68c-7def-8000-ffeeddccbbaa",
    "subscription_id": NAME,
    "event_id": "evt_000000000000-00000000002a",
    "event_type": "job.completed",
    "subject": "019539a4-b68c-7def-8000-1a2b3c4d5e6f",
    "status": "delivered",
    "tries": 1,
    "created_at": "2026-02-15T22:00:01.000Z",
    "last_status_code": 200,
    "last_error": None,
    "attempts": [{"at": "2026-02-15T22:00:01.000Z", "duration_ms": 145, "status": 200}],
    "finished_at": "2026-02-15T22:00:01.200Z",
}
BODY = {"body": text("What is sent, byte for byte: the JSON of the event.")}
WHOLE = Reply(
    "The delivery.",
    obj(f"{ALWAYS_OF_DELIVERY} body", **ABOUT_DELIVERY, **BODY),
    SENT | {"body": '{"specversion":"1.0","type":"job.completed"}'},
)
PAGE = {"total": 1, "limit": 50, "offset": 0, "has_more": False}
NONE = refuses(NotFound, "There is no such subscription.")
NO_DELIVERY = refuses(NotFound, "There is no such delivery.")
CHANGED = Reply("The subscription as it is now.", REPLIED, GIVEN | {"subscription": GIVEN})

OPERATIONS: dict[tuple[str, str], Operation] = {
    ("GET", BASE): Operation(
        "Webhooks",
        "List webhook subscriptions",
        {
            200: Reply(
                "The newest first, without their secrets.",
                obj(
                    "subscriptions pagination",
                    subscriptions=array(SUBSCRIPTION),
                    pagination=ref("Pagination"),
                ),
                {"subscriptions": [GIVEN], "pagination": PAGE},
            )
        },
        "OJS webhooks §6.2.",
    ),
    ("POST", BASE): Operation(
        "Webhooks",
        "Subscribe a URL to events",
        {201: Reply("The subscription.", WITH_SECRET, MADE | {"subscription": MADE})},
        "OJS webhooks §6.1. The secret is in this response only. A subscription gets the events "
        "from now on; that of a project's key gets those of the project's jobs and workflows.",
        body=NewSubscription,
        example={
            "url": "https://api.example.com/webhooks/ojs",
            "events": ["job.completed", "job.failed"],
            "filter": {"queues": ["payments"]},
            "metadata": {"owner": "platform-team"},
        },
        refusals=refuses(NotInstalled, "This server keeps no record of events.")
        + refuses(Conflict, "There are too many subscriptions."),
    ),
    ("GET", ONE): Operation(
        "Webhooks",
        "Show a webhook subscription",
        {200: Reply("The subscription.", REPLIED, GIVEN | {"subscription": GIVEN})},
        "OJS webhooks §6.3.",
        refusals=NONE,
    ),
    ("PATCH", ONE): Operation(
        "Webhooks",
        "Change a webhook subscription",
        {200: CHANGED},
        "OJS webhooks §6.4. What is left out stays as it is.",
        body=ChangeSubscription,
        example={"events": ["job.completed", "job.failed", "job.discarded"], "active": False},
        refusals=NONE,
    ),
    ("DELETE", ONE): Operation(
        "Webhooks",
        "Delete a webhook subscription and its deliveries",
        {
            200: Reply(
                "It was deleted.",
                obj("deleted id", deleted=boolean(), id=text()),
                {"deleted": True, "id": NAME},
            )
        },
        "OJS webhooks §6.5.",
        body=Reason,
        optional=True,
        example={"reason": "The partner has left"},
        refusals=NONE,
    ),
    ("POST", f"{ONE}/test"): Operation(
        "Webhooks",
        "Send a synthetic event",
        {
            200: Reply(
                "What became of it.",
                obj(
                    "success status_code response_time_ms response_body error",
                    success=boolean(),
                    status_code=nullable(integer()),
                    response_time_ms=COUNT,
                    response_body=nullable(text("Its beginning.")),
                    error=nullable(text()),
                ),
                {
                    "success": True,
                    "status_code": 200,
                    "response_time_ms": 145,
                    "response_body": "OK",
                    "error": None,
                },
            )
        },
        "OJS webhooks §6.6. The event has the type `webhook.test`. The receiver has ten seconds.",
        refusals=NONE + refuses(TooManyConnections, "Other webhooks are being tested."),
    ),
    ("POST", f"{ONE}/rotate-secret"): Operation(
        "Webhooks",
        "Give a webhook subscription a new secret",
        {200: Reply("With the new secret.", WITH_SECRET, MADE | {"subscription": MADE})},
        "OJS webhooks §8.3. Deliveries are signed with both secrets for a day, or for `overlap`.",
        body=RotateSecret,
        optional=True,
        example={"overlap": "PT1H"},
        refusals=NONE,
    ),
    ("POST", f"{ONE}/pause"): Operation(
        "Webhooks",
        "Pause a webhook subscription",
        {200: CHANGED},
        "Nothing is sent until it is resumed; it does not get the events until then.",
        refusals=NONE,
    ),
    ("POST", f"{ONE}/resume"): Operation(
        "Webhooks",
        "Resume a webhook subscription",
        {200: CHANGED},
        "It gets what waited for it, and the events from now on.",
        refusals=NONE,
    ),
    ("GET", DELIVERIES): Operation(
        "Webhooks",
        "List deliveries",
        {
            200: Reply(
                "The newest first.",
                obj(
                    "deliveries pagination",
                    deliveries=array(obj(ALWAYS_OF_DELIVERY, **ABOUT_DELIVERY)),
                    pagination=ref("Pagination"),
                ),
                {"deliveries": [SENT], "pagination": PAGE},
            )
        },
        "OJS webhooks §10.",
        refusals=refuses(NotFound, "There is no such subscription."),
    ),
    ("GET", DELIVERY): Operation(
        "Webhooks", "Show a delivery", {200: WHOLE}, "OJS webhooks §10.", refusals=NO_DELIVERY
    ),
    ("POST", f"{DELIVERY}/retry"): Operation(
        "Webhooks",
        "Send a delivery once more",
        {200: WHOLE},
        "OJS webhooks §10. It has the same id, and as many attempts as a new one.",
        body=Reason,
        optional=True,
        example={"reason": "The receiver was repaired"},
        refusals=NO_DELIVERY + refuses(Conflict, "Its subscription is not active."),
    ),
}
