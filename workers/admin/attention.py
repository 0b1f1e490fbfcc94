"""Urgent problems for an operator: what the dashboard lists of `workers.alerts.problems`.

A kind of problem is one line: several of a kind are counted, and folded under their number.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from typing import Any

from django.utils.translation import gettext as _

from jobs.admin import display
from jobs.store import clock

from ..alerts import evaluation
from ..alerts.problems import KINDS, Kind, Link, Problem
from ..models import Alert
from .figures import Figures


@dataclass(frozen=True)
class Item:
    """One thing that needs attention, or several of a kind."""

    text: str
    url: str = ""
    is_error: bool = False
    count: int = 1
    """The number of problems it represents."""
    items: tuple[Item, ...] = ()
    """The individual problems of the kind."""
    key: str = ""
    """Identifies the fold of the kind."""
    alert_url: str = ""
    """The page of the open alert about it."""
    alert: str = ""
    """What is known of that alert; empty if there is none."""


def attention(figures: Figures) -> list[Item]:
    """Everything that is wrong, one line for each kind, errors first."""
    shown = [kind for kind in KINDS.values() if kind.on_dashboard]
    found = {kind.name: _found(kind, figures) for kind in shown}
    lines: list[Item] = []
    alerts = _Alerts(figures)
    for kind in shown:
        covered = {each.subject for each in found.get(kind.covered_by, ())}
        problems = [each for each in found[kind.name] if each.subject not in covered]
        items = [_item(kind, problem, figures, alerts) for problem in problems]
        items.sort(key=lambda item: not item.is_error)
        lines += [_folded(kind, items)] if len(items) > 1 and kind.several else items
    return sorted([*lines, *alerts.others()], key=lambda item: not item.is_error)


def _found(kind: Kind, figures: Figures) -> list[Problem]:
    return list(kind.find(figures, kind.terms(on_dashboard=True)))


def _item(kind: Kind, problem: Problem, figures: Figures, alerts: _Alerts) -> Item:
    url = url_of(problem.link, figures)
    item = Item(problem.text, url, problem.is_error, problem.count)
    return alerts.marked(item, kind.name, problem.subject)


def url_of(link: Link | None, figures: Figures) -> str:
    return figures.url_of(link.model, link.key, page=link.page, **link.query) if link else ""


def _folded(kind: Kind, items: list[Item]) -> Item:
    count = sum(item.count for item in items)
    is_error = any(item.is_error for item in items)
    text = kind.several % {"count": count}
    return Item(text, is_error=is_error, count=count, items=tuple(items), key=kind.name)


MOST = 200
"""Open alerts that the dashboard reads."""


class _Alerts:
    """The open alerts, each of which is shown once: beside the problem, or in a line of its own."""

    def __init__(self, figures: Figures) -> None:
        self._figures = figures
        self._left: dict[tuple[str, str], list[Any]] = {}
        for alert in Alert.objects.begun().select_related("rule").order_by("pk")[:MOST]:
            self._left.setdefault((alert.kind, alert.subject), []).append(alert)

    def marked(self, item: Item, kind: str, subject: str) -> Item:
        alerts = self._left.pop((kind, subject), None)
        if not alerts:
            return item
        return replace(
            item, alert=said(alerts), alert_url=self._figures.url_of(Alert, alerts[0].pk)
        )

    def others(self) -> Iterable[Item]:
        for alerts in self._left.values():
            first = alerts[0]
            yield Item(
                first.text,
                url_of(evaluation.link_of(first), self._figures),
                is_error=not first.is_acknowledged,
                alert=said(alerts),
                alert_url=self._figures.url_of(Alert, first.pk),
            )


def said(alerts: Collection[Any]) -> str:
    """What a mark beside a problem says about its alerts."""
    first = next(iter(alerts))
    since = display.span(clock.now() - first.began_at)
    if first.is_acknowledged:
        return _("alert “%(rule)s” for %(span)s, acknowledged by %(who)s") % {
            "rule": first.rule.name,
            "span": since,
            "who": first.acknowledged_by,
        }
    return _("alert “%(rule)s” for %(span)s") % {"rule": first.rule.name, "span": since}
