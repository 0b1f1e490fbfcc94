"""Many rows of a model at once, the same on both databases."""

from __future__ import annotations

import pytest
from django.db import DataError, IntegrityError
from django.forms import model_to_dict

from jobs.models import JobError, Workflow, WorkflowType
from jobs.spec.identifiers import uuid7
from jobs.store import rows
from jobs.store.rows import insert_rows
from tests.database import atomic
from tests.factories import JobFactory, ago


@pytest.fixture(
    autouse=True,
    params=["auto", pytest.param("citus", marks=pytest.mark.postgres)],
)
def store(settings, request):
    settings.OJS = {"STORE": request.param}


def error(job, **fields) -> JobError:
    about = {"attempt": 1, "type": "boom", "occurred_at": ago(1)}
    return JobError(job=job, **about | fields)


def test_values_of_every_kind_are_kept_and_rows_know_their_ids(db, monkeypatch):
    monkeypatch.setattr(rows, "BATCH", 2)
    job = JobFactory()
    new = [
        error(job),
        error(job, message='"so"\n\\ ümlaut', code="E", worker_id="w", attempt=2**31 - 1),
        error(job, backtrace=["a", "b"], details={"n": [1, 2.5, None, {"x": "y"}]}, retryable=True),
        error(job, details=[], retryable=False, occurred_at=ago(90_000)),
        error(job, message="x" * 70_000),
    ]

    insert_rows(iter(new))

    found = JobError.objects.order_by("pk")
    assert [each.pk for each in new] == [each.pk for each in found]
    assert [model_to_dict(each) for each in new] == [model_to_dict(each) for each in found]
    assert found.filter(details__isnull=True).count() == 3


def test_a_default_of_the_database_does_not_replace_what_is_given(db):
    plain, named = (
        Workflow(id=key, root_id=key, type=WorkflowType.GROUP, created_at=ago(1), **fields)
        for key, fields in ((uuid7(), {}), (uuid7(), {"project": "acme"}))
    )

    insert_rows([plain, named])

    found = dict(Workflow.objects.values_list("pk", "project"))
    assert found == {plain.pk: "", named.pk: "acme"}


def test_a_row_that_is_inserted_can_be_changed_like_any_other(db):
    new = error(JobFactory())
    insert_rows([new])

    new.message = "changed"
    new.save()

    assert JobError.objects.get().message == "changed"


def test_no_rows_are_no_query(db, django_assert_num_queries):
    with django_assert_num_queries(0):
        insert_rows([])


def test_all_are_inserted_or_none(transactional_db, monkeypatch):
    monkeypatch.setattr(rows, "BATCH", 1)
    key = uuid7()
    about = {"id": key, "root_id": key, "type": WorkflowType.GROUP, "created_at": ago(1)}

    with pytest.raises(IntegrityError):
        insert_rows([Workflow(**about), Workflow(**about)])

    assert not Workflow.objects.exists()


@pytest.mark.postgres
def test_no_text_is_shortened(db):
    with pytest.raises(DataError), atomic():
        insert_rows([error(JobFactory(), type="x" * 256)])


@pytest.mark.postgres
def test_what_json_lacks_is_refused(db):
    with pytest.raises(TypeError, match="cannot be inserted with"):
        insert_rows([error(JobFactory(), details={"a": {1, 2}})])
