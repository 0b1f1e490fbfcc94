"""What is typed as a name at the admin's login, on a database that has a longest one."""

from __future__ import annotations

import pytest

from tests import processes
from tests.project.test_login import Login


@pytest.mark.slow
def test_a_name_that_no_user_can_have_is_refused_as_any_other(database_url, tmp_path):
    with (
        processes.own_database(database_url, tmp_path) as url,
        processes.server(tmp_path, processes.environment(url)) as api,
    ):
        tried = [Login(api.url).try_out(name, "guess") for name in ("x" * 256, "x" * 5000)]

    assert [answer.status_code for answer in tried] == [200, 200]
    assert all("errornote" in answer.text for answer in tried)
