"""Lists of a table that may hold millions: pages without counting it, figures without N queries."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.utils.functional import cached_property

MOST = 10_000
"""Rows that can be paged through; whoever looks for more filters."""


class CappedPaginator(Paginator):
    """Counts no further than `MOST`: nobody waits for a count of a million rows."""

    @cached_property
    def _counted(self) -> int:
        rows: Any = self.object_list
        return int(rows.order_by().values("pk")[: MOST + 1].count())

    @cached_property
    def count(self) -> int:
        return min(self._counted, MOST)

    @property
    def is_capped(self) -> bool:
        """Whether there are more rows than can be paged through."""
        return self._counted > MOST


class FiguresChangeList(ChangeList):
    """A page of rows to which the model admin adds figures: one query for all of them."""

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        # What was counted as nothing need not be looked for again.
        self.result_list: Any = list(self.result_list) if self.result_count else []
        add_figures = getattr(self.model_admin, "add_figures", None)
        if add_figures and self.result_list:
            add_figures(self.result_list)
