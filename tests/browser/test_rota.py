"""A page in a browser is a Rota worker: JavaScript, a WebSocket, and no header for its key."""

from __future__ import annotations

import pytest

import jobs
from jobs import engine
from jobs.http.authentication import make_key
from jobs.models import Job
from tests import processes
from tests.conftest import url_of_test_database
from workers.models import Worker

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.slow]

PAGE = """
<!doctype html>
<title>A Rota worker</title>
<p id="state">connecting</p>
<ul id="done"></ul>
<script>
  const socket = new WebSocket("URL", ["rota", "bearer.KEY"]);
  const say = (parts) => socket.send(JSON.stringify({type: "heartbeat", ...parts}));
  const show = (text) => { document.getElementById("state").textContent = text; };
  socket.onopen = () => say({
    registration: {
      worker_id: "browser", hostname: location.host || "page", os: navigator.platform,
      queues: ["default"], specs: [{id: "text.shout", checksum: "v1"}],
    },
    wanted: 1,
  });
  socket.onmessage = (event) => {
    const message = JSON.parse(event.data);
    if (message.registered) show("registered over " + socket.protocol);
    if (message.type !== "assignment") return;
    const {id, attempt, args} = message.job;
    const data = args[0].toUpperCase();
    document.getElementById("done").innerHTML += `<li>${data}</li>`;
    say({results: [{job_id: id, attempt, outcome: "succeeded", data}], wanted: 1});
  };
  socket.onclose = (event) => show("closed " + event.code);
  const beat = setInterval(() => socket.readyState === 1 && say({}), 1000);
</script>
"""


@pytest.fixture
def served(transactional_db, tmp_path):
    """The URL of a server that requires keys."""
    port = processes.free_port()
    environment = processes.environment(url_of_test_database(), ROTA_PORT=port)
    with processes.manage(tmp_path, environment, "runrota") as process:
        process.wait_for("Rota workers are served at")
        yield f"ws://127.0.0.1:{port}/work"
        assert "Traceback" not in process.output, process.output


def test_a_page_runs_jobs_that_are_pushed_to_it(served, chromium):
    engine.register_specs({"text.shout": "v1"})
    _, key = make_key("page", scopes=["work"])
    page = chromium.new_page()

    page.set_content(PAGE.replace("URL", served).replace("KEY", key))
    page.get_by_text("registered over rota").wait_for()
    given = [jobs.enqueue("text.shout", [text]) for text in ("ada", "grace")]
    page.get_by_text("GRACE").wait_for()
    for job in given:
        processes.eventually(lambda job=job: Job.objects.get(pk=job.id).state == "completed")
    page.close()

    assert [Job.objects.get(pk=job.id).result for job in given] == ["ADA", "GRACE"]
    worker = Worker.objects.get(pk="browser")
    assert (worker.protocol, worker.specs) == ("rota", {"text.shout": "v1"})
    # A page that is closed ends properly: the worker has left, and is not declared dead.
    processes.eventually(lambda: Worker.objects.get(pk="browser").left_at is not None)


def test_a_page_with_a_wrong_key_is_not_let_in(served, chromium):
    page = chromium.new_page()

    page.set_content(PAGE.replace("URL", served).replace("KEY", "ojs_wrong"))

    page.get_by_text("closed 1006").wait_for()
    page.close()
    assert not Worker.objects.exists()
