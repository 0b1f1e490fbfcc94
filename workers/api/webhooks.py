"""Webhook subscriptions and their deliveries over HTTP (OJS webhooks §6, §10)."""

from __future__ import annotations

from typing import Any

from rest_framework.response import Response

from jobs.access.audit import of_caller
from jobs.access.projects import scope_to
from jobs.http.authentication import Caller
from jobs.http.base import OJSViewSet
from jobs.http.paging import below_id, page
from jobs.http.parameters import Page
from jobs.http.request import Request
from jobs.spec.fields import refuse
from jobs.spec.operator_requests import Reason

from ..models import WebhookDelivery, WebhookSubscription
from ..webhooks import delivery as sending
from ..webhooks import subscriptions
from ..webhooks.requests import (
    ChangeSubscription,
    DeliveryQuery,
    NewSubscription,
    RotateSecret,
    Secret,
    read_changes,
)
from ..webhooks.subscriptions import delivery_document, document


class WebhookViewSet(OJSViewSet):
    """`/ojs/v1/webhooks`"""

    resource = "webhooks"
    queries = {"list": Page, "deliveries": DeliveryQuery}

    @classmethod
    def confine(cls, caller: Caller, **named: str) -> None:
        """
        Raises:
            NotFound: the caller's project has no such subscription or delivery.
        """
        # Their project never changes, so checking first is not a race.
        if caller.project and "subscription_id" in named:
            subscriptions.find(named["subscription_id"], caller.project)
        if caller.project and "delivery_id" in named:
            subscriptions.find_delivery(named["delivery_id"], caller.project)

    def list(self, request: Request) -> Response:
        """The subscriptions, the newest first (§6.2)."""
        rows = scope_to(WebhookSubscription.objects.order_by("-pk"), self.caller.project)
        found, pagination = page(
            request.query_params, rows, keys=lambda row: [str(row.pk)], after=below_id, parts=1
        )
        return Response(
            {"subscriptions": [document(row) for row in found], "pagination": pagination}
        )

    def create(self, request: Request) -> Response:
        """Make a subscription; only this response has its secret (§6.1)."""
        body = self.read(NewSubscription, required=True)
        NewSubscription.demand(body)
        made = subscriptions.create(
            of_caller(self.caller, request),
            read_changes(body),
            secret=NewSubscription.secret.read(body) or "",
            project=self.caller.project,
        )
        response = Response(_reply(made, secret=made.secret), status=201)
        response["Location"] = f"{request.path.rstrip('/')}/{made.name}"
        return response

    def retrieve(self, request: Request, subscription_id: str) -> Response:
        """One subscription, without its secret (§6.3)."""
        return Response(_reply(self._found(subscription_id)))

    def update(self, request: Request, subscription_id: str) -> Response:
        """Change a subscription (§6.4)."""
        if Secret.secret.name in self.read(required=True):
            # Deliveries that are under way must be signed with the previous one as well (§8.3).
            raise refuse("secret", "A secret is changed by POST …/rotate-secret.")
        columns = read_changes(self.read(ChangeSubscription))
        return self._changed(subscription_id, columns)

    def pause(self, request: Request, subscription_id: str) -> Response:
        """Send nothing until it is resumed."""
        return self._changed(subscription_id, {"active": False})

    def resume(self, request: Request, subscription_id: str) -> Response:
        """Send again: what waits, and the events from now on."""
        return self._changed(subscription_id, {"active": True})

    def _changed(self, name: str, columns: dict[str, Any]) -> Response:
        actor = of_caller(self.caller, self.request)
        return Response(_reply(subscriptions.change(actor, self._found(name), columns)))

    def destroy(self, request: Request, subscription_id: str) -> Response:
        """Delete a subscription and its deliveries (§6.5)."""
        found, reason = self._found(subscription_id), Reason.reason.read(self.read(Reason))
        subscriptions.delete(of_caller(self.caller, request), found, reason=reason)
        return Response({"deleted": True, "id": found.name})

    def test(self, request: Request, subscription_id: str) -> Response:
        """Send a synthetic event, and report the response (§6.6)."""
        found = self._found(subscription_id)
        outcome = sending.test(found)
        subscriptions.record_change(
            of_caller(self.caller, request), found, {"tested": outcome.is_success}
        )
        return Response(
            {
                "success": outcome.is_success,
                "status_code": outcome.status,
                "response_time_ms": round(outcome.duration * 1000),
                "response_body": outcome.text if outcome.status is not None else None,
                "error": None if outcome.is_success else outcome.entry["error"],
            }
        )

    def rotate(self, request: Request, subscription_id: str) -> Response:
        """Give it a new secret, which only this response has (§8.3)."""
        body = self.read(RotateSecret)
        row = subscriptions.rotate(
            of_caller(self.caller, request),
            self._found(subscription_id),
            secret=RotateSecret.secret.read(body) or "",
            overlap=RotateSecret.overlap.read(body),
            reason=RotateSecret.reason.read(body),
        )
        return Response(_reply(row, secret=row.secret))

    def deliveries(self, request: Request) -> Response:
        """Recent deliveries, the newest first (§10)."""
        parameters, project = request.query_params, self.caller.project
        rows = WebhookDelivery.objects.order_by("-pk")
        if project:
            rows = rows.filter(subscription__project=project)
        if name := DeliveryQuery.subscription_id.read(parameters):
            rows = rows.filter(subscription=self._found(name).pk)
        if status := DeliveryQuery.status.read(parameters):
            rows = rows.filter(state=status)
        if kind := DeliveryQuery.event_type.read(parameters):
            rows = rows.filter(event_type=kind)
        found, pagination = page(
            parameters,
            rows.defer("body"),
            keys=lambda row: [str(row.pk)],
            after=below_id,
            parts=1,
        )
        return Response(
            {"deliveries": [delivery_document(row) for row in found], "pagination": pagination}
        )

    def delivery(self, request: Request, delivery_id: str) -> Response:
        """One delivery, with what is sent."""
        found = subscriptions.find_delivery(delivery_id, self.caller.project)
        return Response(_delivery_reply(found))

    def retry(self, request: Request, delivery_id: str) -> Response:
        """Send a delivery once more, from its first attempt on (§10)."""
        found = subscriptions.find_delivery(delivery_id, self.caller.project)
        actor, reason = of_caller(self.caller, request), Reason.reason.read(self.read(Reason))
        return Response(_delivery_reply(subscriptions.replay(actor, found, reason=reason)))

    def _found(self, name: str) -> WebhookSubscription:
        return subscriptions.find(name, self.caller.project)


def _reply(row: WebhookSubscription, **more: Any) -> dict[str, Any]:
    """As the document has it, and below `subscription`, as the public cases have it."""
    shown = document(row) | more
    return shown | {"subscription": shown}


def _delivery_reply(row: WebhookDelivery) -> dict[str, Any]:
    return delivery_document(row, whole=True)
