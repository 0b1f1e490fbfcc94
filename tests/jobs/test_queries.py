"""Queries that are built and compiled once (`jobs.store.queries`)."""

from __future__ import annotations

import pytest
from django.db.models import IntegerField, Value
from django.test.utils import CaptureQueriesContext

from jobs.models import Job
from jobs.store.database import connection, is_postgresql
from jobs.store.expressions import Among, Each, JSONElement
from jobs.store.queries import compiled_once
from tests.factories import JobFactory

pytestmark = pytest.mark.django_db
ODD = ["%s", "100%", "it's", 'a "word"', "back\\slash", "{1,2}", "NULL", "ä ö", " "]


def objects(ids):
    jobs = Job.objects.filter(Among("pk", ids), type__contains="%").order_by("type")
    return jobs.only("type", "meta").annotate(seven=Value(7))


def values(ids):
    return Job.objects.filter(Among("pk", ids)).order_by("type").values_list("pk", "args", "meta")


def types(names):
    return Job.objects.filter(Among("type", names)).order_by("type").values_list("type", flat=True)


def elements(ids, places):
    jobs = Job.objects.filter(Among("pk", ids)).order_by("type")
    return jobs.values_list("type", JSONElement("args", Each(places, IntegerField())))


def everything():
    return Job.objects.order_by("type").values_list("type", flat=True)


def test_its_rows_are_those_of_the_queryset_each_time():
    made = [JobFactory(type=f"{kind}%", args=[{"of": kind}], meta={"is": [kind]}) for kind in ODD]
    for jobs in (made[:1], made, made[2:5]):
        ids = [job.pk for job in jobs]
        for query in (objects, values):
            found, wanted = compiled_once(query)(ids), list(query(ids))
            assert found == wanted
            assert len(found) == len(jobs)
        loaded = compiled_once(objects)(ids)
        assert [job.seven for job in loaded] == [7] * len(jobs)
        assert {job.meta["is"][0] + "%" for job in loaded} == {job.type for job in loaded}
        assert loaded[0].get_deferred_fields() == objects(ids)[0].get_deferred_fields()
        assert loaded[0].args == [{"of": loaded[0].meta["is"][0]}]


def test_names_may_contain_anything():
    for kind in ODD:
        JobFactory(type=kind)
    find = compiled_once(types)

    assert find(ODD) == list(types(ODD))
    assert [find([kind]) for kind in ODD] == [[kind] for kind in ODD]
    assert find(["it"]) == []


def test_each_row_may_have_a_value_of_its_own():
    first, second = JobFactory(type="a", args=[{"n": 0}, [1]]), JobFactory(type="b", args=[[2], 3])
    places = {first.pk: 1, second.pk: 0}

    assert compiled_once(elements)(places, places) == [("a", [1]), ("b", [2])]
    assert list(elements(places, places)) == [("a", [1]), ("b", [2])]


def test_it_is_built_once_on_postgresql():
    built = []

    def query(ids):
        built.append(1)
        return values(ids)

    find, job = compiled_once(query), JobFactory()
    assert [find([job.pk]) for _ in range(3)] == [[(job.pk, job.args, job.meta)]] * 3

    assert len(built) == (1 if is_postgresql() else 3)


def test_without_values_there_is_nothing_to_ask():
    JobFactory(type="a")
    with CaptureQueriesContext(connection()) as captured:
        assert compiled_once(types)([]) == []
        assert len(captured) == 0
        assert compiled_once(everything)() == ["a"]
        assert len(captured) == 1
