"""Fields of a worker's page: capabilities, the directives it accepts, and causes for concern."""

from __future__ import annotations

from django.contrib import admin
from django.utils.html import format_html, format_html_join
from django.utils.safestring import SafeString
from django.utils.translation import gettext
from django.utils.translation import gettext_lazy as _

from jobs.admin import display
from jobs.conf import protocol_of
from jobs.models import JobSpec
from jobs.spec.versions import Versions

from ..fleet.orders import can_hear
from ..lifecycle import WorkerState
from ..models import Worker
from . import matrix


class AbilityFields:
    """The read-only fields of the section "What it can do"."""

    @admin.display(description=_("capabilities"))
    def capability_list(self, worker: Worker) -> str | SafeString:
        return display.chips(worker.capabilities)

    @admin.display(description=_("job types"))
    def type_list(self, worker: Worker) -> str | SafeString:
        """The types it runs: those it declared, or those for which it sent a checksum."""
        if worker.specs is not None:
            return display.chips(f"{kind} ({spec})" for kind, spec in sorted(worker.specs.items()))
        return gettext("any") if worker.job_types is None else display.chips(worker.job_types)

    @admin.display(description=_("versions of jobs"))
    def version_list(self, worker: Worker) -> str | SafeString:
        """Version ranges, for types not run in all versions (OJS job versioning §8.1)."""
        taken = sorted((worker.job_versions or {}).items())
        return display.chips(f"{kind} {Versions(*bounds)}" for kind, bounds in taken)

    @admin.display(description=_("job specs"))
    def spec_list(self, worker: Worker) -> str | SafeString:
        """Each type and checksum, and whether it is the registered one (Rota)."""
        if not worker.specs:
            return display.NOTHING
        registered = dict(
            JobSpec.objects.filter(pk__in=worker.specs).values_list("type", "checksum")
        )
        rows = (
            (name, matrix.cell(registered.get(name), worker.specs[name]))
            for name in sorted(worker.specs)
        )
        return format_html_join("", "<div>{} {}</div>", rows)

    @admin.display(description=_("protocol"))
    def speaks(self, worker: Worker) -> str:
        return protocol_of(worker.protocol).title

    @admin.display(description=_("receives “quiet”"))
    def hears(self, worker: Worker) -> str:
        if not can_hear(worker, WorkerState.QUIET):
            return gettext("no: its protocol has no word for it; quiet is enforced at fetch")
        return gettext("at its next heartbeat")

    @admin.display(description=_("measured by itself"))
    def measured(self, worker: Worker) -> str | SafeString:
        if worker.stats is None:
            return display.NOTHING
        return format_html(
            "{} {}", display.moment(worker.stats_at), display.json_block(worker.stats)
        )

    @admin.display(description=_("to be looked at"))
    def flagged(self, worker: Worker) -> str | SafeString:
        if worker.flagged_at is None:
            return display.NOTHING
        note = gettext("it let a job run past its time, and may hang")
        return format_html("{}: {}", display.moment(worker.flagged_at), note)
