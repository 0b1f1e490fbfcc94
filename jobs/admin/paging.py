"""Lists of tables with millions of rows: pages without a full count, figures without N queries."""

from __future__ import annotations

from typing import Any

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ERROR_FLAG, ChangeList
from django.core.paginator import Paginator
from django.utils.functional import cached_property

from ..spec.identifiers import parse_uuid

MOST = 10_000
"""Rows that can be paged through; filters find the others."""


class CappedPaginator(Paginator):
    """Counts no further than `MOST`: counting a million rows takes too long."""

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

    def get_filters(self, request: Any) -> Any:
        try:
            return super().get_filters(request)
        except (OverflowError, ValueError) as problem:
            # A year in the address may be one that Django computes with and Python does not have.
            raise IncorrectLookupParameters(problem) from problem

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        rows = super().get_queryset(request, exclude_parameters)
        # The address had a filter that does not exist. What is listed can be selected and acted
        # on: not everything, then.
        return rows.none() if ERROR_FLAG in request.GET else rows

    def get_results(self, request: Any) -> None:
        super().get_results(request)
        # No need to query again for rows that were counted as zero.
        self.result_list: Any = self.page_of_rows() if self.result_count else []
        add_figures = getattr(self.model_admin, "add_figures", None)
        if add_figures and self.result_list:
            add_figures(self.result_list)

    def page_of_rows(self) -> list[Any]:
        return list(self.result_list)


OLDER, NEWER = "older", "newer"
"""Parameters of a list's URL: the key of the row to continue from."""


class KeysetChangeList(FiguresChangeList):
    """Pages of a list in the order of its keys, newest first, each found by where the last ended.

    The thousandth page costs the same as the first, and new rows do not shift rows between pages.
    """

    edge: Any = None
    direction = OLDER
    is_keyset = True
    newer_query = older_page_query = ""
    """Query strings of the neighbouring pages; empty where there is none."""

    def __init__(self, request: Any, *args: Any, **kwargs: Any) -> None:
        for name in (OLDER, NEWER):
            if key := self.read_key(request.GET.get(name, "")):
                self.edge, self.direction = key, name
        super().__init__(request, *args, **kwargs)

    def get_queryset(self, request: Any, exclude_parameters: Any = None) -> Any:
        self.page_num = 1
        for name in (OLDER, NEWER):  # no filters, and no part of any other link
            self.params.pop(name, None)
            self.filter_params.pop(name, None)
        return super().get_queryset(request, exclude_parameters)

    # The key of a row is its id; a list in another order overrides reading and writing keys.

    def read_key(self, text: str) -> Any:
        return parse_uuid(text)

    def key_of(self, row: Any) -> str:
        return str(row.pk)

    def older_than(self, rows: Any, key: Any) -> Any:
        return rows.filter(pk__lt=key)

    def newer_than(self, rows: Any, key: Any) -> Any:
        return rows.filter(pk__gt=key)

    def page_of_rows(self) -> list[Any]:
        rows, size = self.queryset, self.list_per_page
        if self.edge is not None and self.direction == NEWER:
            found = list(self.newer_than(rows, self.edge).reverse()[: size + 1])
            has_newer, has_older = len(found) > size, True
            page = found[:size][::-1]
        else:
            older = rows if self.edge is None else self.older_than(rows, self.edge)
            found = list(older[: size + 1])
            has_newer, has_older = self.edge is not None, len(found) > size
            page = found[:size]
        if page and has_newer:
            self.newer_query = self.get_query_string({NEWER: self.key_of(page[0])})
        if page and has_older:
            self.older_page_query = self.get_query_string({OLDER: self.key_of(page[-1])})
        return page

    @property
    def newest_query(self) -> str:
        return self.get_query_string()
