"""Admin API: tenants and worker pools."""

from __future__ import annotations

from jobs.errors import Conflict, NotFound
from jobs.spec.pools import STRATEGIES, ChangePool
from jobs.spec.tenants import ChangeTenant, ChangeTenantLimits, TenantLimits

from ..operation import Operation, Reply
from ..refusals import refuses
from ..schema import COUNT, TIME, array, boolean, enum, free, integer, nullable, number, obj, text
from .admin import BASE, FIRST, LINE, PAGINATION, SHORT, WHY

TENANTS = f"{BASE}/tenants"
TENANT = f"{TENANTS}/{{tenant_id}}"
POOLS = f"{BASE}/pools"
POOL = f"{POOLS}/{{name}}"
UNKNOWN = refuses(NotFound, "There is no such tenant.")
NO_POOL = refuses(NotFound, "There is no such pool.")

ABOUT = {
    "tenant_id": text(),
    "limits": TenantLimits.reference(),
    "fairness_weight": number(),
    "priority_boost": integer(),
    "quota": enum("hard", "soft"),
    "created_at": TIME,
    "updated_at": TIME,
}
REQUIRED = "tenant_id limits fairness_weight priority_boost quota"
ACME = {
    "tenant_id": "acme-corp",
    "limits": {"max_concurrency": 20, "max_enqueue_rate": {"limit": 1000, "period": "PT1M"}},
    "fairness_weight": 10.0,
    "priority_boost": 0,
    "quota": "hard",
}
WHOLE = obj(f"{REQUIRED} tenant", **ABOUT, tenant=obj(REQUIRED, **ABOUT))
FOUND = ACME | {"tenant": ACME}
IT = Reply("The tenant.", WHOLE, FOUND)
MADE = {200: IT, 201: Reply("The tenant, which is new.", WHOLE, FOUND)}
JOBS = {"available": 42, "active": 8, "scheduled": 15, "retryable": 0}
COUNTS = obj(" ".join(JOBS), **dict.fromkeys(JOBS, COUNT))
STATS = obj(
    "tenant_id jobs throughput limits fairness",
    tenant_id=text(),
    jobs=free("Jobs by state, and those of the last day."),
    throughput=obj(
        "processed_per_minute enqueued_per_minute",
        processed_per_minute=number(),
        enqueued_per_minute=number(),
    ),
    limits=free("Of each limit that counts jobs, the `limit` and the `current` number."),
    fairness=obj(
        "weight effective_share actual_share",
        weight=number(),
        effective_share=number("What its weight gives it among the tenants that wait now."),
        actual_share=number("Of the jobs that completed in the last minutes."),
    ),
)
POOL_MEMBERS = {
    "name": text(),
    "queues": array(text()),
    "strategy": enum(*STRATEGIES),
    "weights": free("Queue → its weight."),
    "concurrency": nullable(COUNT),
    "isolated": boolean("No other workers get jobs of its queues."),
    "starvation_prevention": obj(
        "enabled rotation_interval min_dispatch_ratio",
        enabled=boolean(),
        rotation_interval=text(),
        min_dispatch_ratio=number(),
    ),
    "active_workers": COUNT,
    "active_jobs": COUNT,
    "updated_at": TIME,
}
DISPATCHES = {
    "dispatch_count_1m": nullable(COUNT),
    "dispatch_ratio_1m": nullable(number("Of all jobs that were handed out.")),
    "avg_wait_ms": nullable(COUNT),
    "active_jobs": COUNT,
    "waiting_jobs": COUNT,
}
DISPATCHED = " ".join(DISPATCHES)
GIVEN = {
    "dispatch_count_1m": 142,
    "dispatch_ratio_1m": 0.45,
    "avg_wait_ms": 12,
    "active_jobs": 8,
    "waiting_jobs": 31,
}
OF_POOL = "name queues strategy concurrency isolated active_workers active_jobs updated_at"
CRITICAL = {
    "name": "critical-workers",
    "queues": ["critical", "payments"],
    "strategy": "strict",
    "concurrency": 20,
    "isolated": False,
    "active_workers": 4,
    "active_jobs": 12,
    "updated_at": "2026-02-12T10:30:00.000Z",
}
WHOLE_POOL = obj(f"{OF_POOL} pool", **POOL_MEMBERS, pool=obj(OF_POOL, **POOL_MEMBERS))
THE_POOL = Reply("The pool.", WHOLE_POOL, CRITICAL | {"pool": CRITICAL})

OPERATIONS = {
    ("GET", TENANTS): Operation(
        "Tenants",
        "List tenants with their unfinished jobs",
        {
            200: Reply(
                "Tenants that are configured, have keys or unfinished jobs, by name.",
                obj(
                    "items tenants pagination",
                    items=array(obj(f"{REQUIRED} jobs", **ABOUT, jobs=COUNTS)),
                    tenants=array(obj(f"{REQUIRED} jobs", **ABOUT, jobs=COUNTS)),
                    pagination=PAGINATION,
                ),
                {
                    "items": [ACME | {"jobs": JOBS}],
                    "tenants": [ACME | {"jobs": JOBS}],
                    "pagination": FIRST,
                },
            )
        },
        "OJS multi-tenancy §10.1. `tenants` are the same as `items`.",
    ),
    ("GET", TENANT): Operation(
        "Tenants", "Show the limits and the share of a tenant", {200: IT}, refusals=UNKNOWN
    ),
    ("PUT", TENANT): Operation(
        "Tenants",
        "Make a tenant, or change it",
        MADE,
        "OJS multi-tenancy §8.1. Members that are left out stay as they are.",
        body=ChangeTenant,
        example={"limits": {"max_concurrency": 20}, "fairness_weight": 10},
        optional=True,
    ),
    ("PUT", f"{TENANT}/limits"): Operation(
        "Tenants",
        "Change the limits of a tenant",
        MADE,
        "OJS multi-tenancy §9.3. Limits that are left out stay as they are.",
        body=ChangeTenantLimits,
        example={"max_concurrency": 5, "reason": "downstream outage"},
    ),
    ("DELETE", TENANT): Operation(
        "Tenants",
        "Delete the limits and the share of a tenant",
        {
            200: Reply(
                "They were deleted; its jobs stay.",
                obj("tenant_id deleted", tenant_id=text(), deleted=boolean()),
                {"tenant_id": "acme-corp", "deleted": True},
            )
        },
        refusals=UNKNOWN,
        **WHY,
    ),
    ("GET", f"{TENANT}/stats"): Operation(
        "Tenants",
        "Show what a tenant has and does",
        {
            200: Reply(
                "Its figures.",
                STATS,
                {
                    "tenant_id": "acme-corp",
                    "jobs": JOBS | {"pending": 0, "completed_24h": 5841, "failed_24h": 23},
                    "throughput": {"processed_per_minute": 12.5, "enqueued_per_minute": 13.1},
                    "limits": {"max_concurrency": {"limit": 20, "current": 8}},
                    "fairness": {"weight": 10, "effective_share": 0.32, "actual_share": 0.28},
                },
            )
        },
        "OJS multi-tenancy §10.2.",
        refusals=UNKNOWN,
    ),
    ("GET", f"{TENANT}/jobs"): Operation(
        "Tenants",
        "List the jobs of a tenant",
        {
            200: Reply(
                "Without arguments and results.",
                obj("items pagination", items=array(LINE), pagination=PAGINATION),
                {"items": [SHORT], "pagination": FIRST},
            )
        },
        "OJS multi-tenancy §10.3.",
        refusals=UNKNOWN,
    ),
    ("GET", POOLS): Operation(
        "Tenants",
        "List worker pools",
        {
            200: Reply(
                "By name.",
                obj(
                    "items pools pagination",
                    items=array(obj(OF_POOL, **POOL_MEMBERS)),
                    pools=array(obj(OF_POOL, **POOL_MEMBERS)),
                    pagination=PAGINATION,
                ),
                {"items": [CRITICAL], "pools": [CRITICAL], "pagination": FIRST},
            )
        },
        "OJS fair scheduling §10.1.",
    ),
    ("GET", POOL): Operation("Tenants", "Show a worker pool", {200: THE_POOL}, refusals=NO_POOL),
    ("PUT", POOL): Operation(
        "Tenants",
        "Make or replace a worker pool",
        {200: THE_POOL, 201: Reply("The pool, which is new.", WHOLE_POOL, THE_POOL.example)},
        "OJS fair scheduling §6.1. The next fetch that names it goes by it.",
        body=ChangePool,
        example={"queues": ["critical", "payments"], "concurrency": 20, "strategy": "strict"},
        refusals=refuses(Conflict, "Another pool isolates one of the queues."),
    ),
    ("GET", f"{BASE}/scheduling/stats"): Operation(
        "Tenants",
        "Show what queues, worker pools and tenants were given lately",
        {
            200: Reply(
                "In the last minute. Null where events or metrics are off.",
                obj(
                    "queues pools tenants window",
                    queues=array(
                        obj(f"name {DISPATCHED}", name=text(), **DISPATCHES),
                    ),
                    pools=array(
                        obj(
                            f"name {DISPATCHED} active_workers concurrency",
                            name=text(),
                            **DISPATCHES,
                            active_workers=COUNT,
                            concurrency=nullable(COUNT),
                        )
                    ),
                    tenants=array(
                        obj(
                            "tenant_id active_jobs waiting_jobs completed_ratio",
                            tenant_id=text(),
                            active_jobs=COUNT,
                            waiting_jobs=COUNT,
                            completed_ratio=number("Of the jobs that completed lately."),
                        )
                    ),
                    window=text(),
                ),
                {
                    "queues": [{"name": "critical", **GIVEN}],
                    "pools": [
                        {
                            "name": "critical-workers",
                            **GIVEN,
                            "active_workers": 4,
                            "concurrency": 20,
                        }
                    ],
                    "tenants": [
                        {
                            "tenant_id": "acme",
                            "active_jobs": 3,
                            "waiting_jobs": 12,
                            "completed_ratio": 0.45,
                        }
                    ],
                    "window": "PT1M",
                },
            )
        },
        "OJS fair scheduling §10.2. At most 1,000 of each, by name.",
    ),
    ("DELETE", POOL): Operation(
        "Tenants",
        "Delete a worker pool",
        {
            200: Reply(
                "It was deleted.",
                obj("name deleted", name=text(), deleted=boolean()),
                {"name": "critical-workers", "deleted": True},
            )
        },
        refusals=NO_POOL,
        **WHY,
    ),
}
