"""The files that deploy the stand-alone project say what its programs understand."""

from __future__ import annotations

import importlib.util
import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml
from django.core.management import get_commands, load_command_class

from ojs_project.environment import misread
from ojs_project.health import PROBES
from tests.once import once_is_enough

from . import recipes
from .recipes import CHART, ROOT, UNITS, containers, of_kind

pytestmark = once_is_enough

SCHEMAS = json.loads((Path(__file__).parent / "kubernetes.json").read_text())


@pytest.mark.parametrize("where", recipes.commands())
def test_every_command_is_one_that_its_program_accepts(where):
    program, *words = recipes.commands()[where]

    if words[0] == "-m":
        assert importlib.util.find_spec(words[1]) is not None
    else:
        assert (program, words[0]) == ("python", "manage.py")
        command = load_command_class(get_commands()[words[1]], words[1])
        command.create_parser("manage.py", words[1]).parse_args(words[2:])


def test_the_image_copies_what_there_is_and_the_context_has_it():
    ignored = (ROOT / ".dockerignore").read_text().splitlines()

    for source, _ in recipes.copied():
        assert (ROOT / source).exists(), source
        assert f"!{source}" in ignored


def test_the_image_needs_no_root_and_installs_by_hash():
    assert recipes.instruction("USER") == "10001:10001"
    (install,) = (text for name, text in recipes.instructions() if "pip install" in text)
    assert {"--require-hashes", "--no-deps", "--only-binary"} <= set(install.split())


def test_each_variable_of_the_image_is_an_option():
    assert list(misread(recipes.image_environment())) == []


@pytest.mark.parametrize("name", recipes.services())
def test_no_service_of_compose_can_write_outside_its_places(name):
    service = recipes.services()[name]

    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert service["tmpfs"] == ["/tmp"]
    writable = [volume for volume in service["volumes"] if not volume.endswith(":ro")]
    assert writable == (["data:/data"] if name == "setup" else [])


def test_compose_publishes_on_this_machine_only():
    for service in yaml.safe_load(recipes.COMPOSE.read_text())["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service.get("ports", []))


@pytest.mark.parametrize("manifest", of_kind(*SCHEMAS["kinds"]), ids=lambda one: one["kind"])
def test_kubernetes_takes_each_manifest(manifest):
    schema = SCHEMAS | {"$ref": SCHEMAS["kinds"][manifest["kind"]]}

    jsonschema.Draft202012Validator(schema).validate(manifest)


def test_every_container_is_confined_and_has_time_to_end():
    for name, pod, container in containers():
        assert pod["securityContext"]["runAsNonRoot"] is True, name
        assert container["securityContext"]["readOnlyRootFilesystem"] is True, name
        assert pod["enableServiceLinks"] is False, name
        words = container["command"]
        if "--grace-period" in words:
            grace = int(words[words.index("--grace-period") + 1])
            assert pod["terminationGracePeriodSeconds"] > grace, name
        variables = {one["name"]: one["value"] for one in container["env"]}
        assert list(misread(variables)) == [], name


def test_probes_ask_what_plain_http_answers_as_a_host_that_is_served():
    found = [
        (probe["httpGet"], container)
        for _, _, container in containers()
        for kind in ("livenessProbe", "readinessProbe")
        if "httpGet" in (probe := container.get(kind, {}))
    ]
    assert found
    for request, container in found:
        assert request["path"] in PROBES
        (host,) = (one["value"] for one in request["httpHeaders"] if one["name"] == "Host")
        (allowed,) = (
            one["value"] for one in container["env"] if one["name"] == "DJANGO_ALLOWED_HOSTS"
        )
        assert host in allowed.split(",")


def labels(workload: dict[str, Any]) -> dict[str, str]:
    found: dict[str, str] = workload["spec"]["template"]["metadata"]["labels"]
    return found


def test_what_selects_pods_selects_those_of_one_deployment():
    deployments = of_kind("Deployment")
    assert len(deployments) > 5
    for one in of_kind("Deployment", "Service", "PodDisruptionBudget"):
        selector = one["spec"]["selector"]
        selector = selector.get("matchLabels", selector)
        chosen = [each for each in deployments if selector.items() <= labels(each).items()]
        assert len(chosen) == 1, one["metadata"]["name"]


def test_autoscaled_workers_get_their_number_from_keda():
    names = {one["metadata"]["name"]: one for one in of_kind("Deployment")}
    (service,) = (
        one for one in of_kind("Service") if one["spec"]["ports"][0]["targetPort"] == "http"
    )
    scaled = of_kind("ScaledObject")
    assert scaled
    (authentication,) = of_kind("TriggerAuthentication")
    for one in scaled:
        target = names[one["spec"]["scaleTargetRef"]["name"]]
        assert "replicas" not in target["spec"]
        (trigger,) = one["spec"]["triggers"]
        assert trigger["authenticationRef"]["name"] == authentication["metadata"]["name"]
        (container,) = target["spec"]["template"]["spec"]["containers"]
        queues = container["command"][container["command"].index("--queues") + 1]
        url = trigger["metadata"]["url"]
        host, port = service["metadata"]["name"], service["spec"]["ports"][0]["port"]
        assert re.fullmatch(rf"http://{host}\.\w+\.svc:{port}/ojs/v1/autoscaling\?queues=(.*)", url)
        assert url.endswith(f"={queues}")


def test_the_manifests_are_what_helm_renders():
    """Where there is a Helm: `pip install helm-python-sdk` is one."""
    helm = pytest.importorskip("helm_python")
    values = yaml.safe_load((CHART / "example-values.yaml").read_text())

    with helm.Chart.load(str(CHART)) as chart:
        chart.render({}, name="prod", namespace="jobs")
        files = chart.render(values, name="ojs", namespace="jobs")

    rendered = [
        document
        for name in sorted(files)
        if name.endswith(".yaml")
        for document in yaml.safe_load_all(files[name])
        if document
    ]
    assert helm.lint(str(CHART))["errors"] == []
    assert recipes.manifests() == rendered, "Run `python -m tests.deploy.render`."


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="needs systemd-analyze")
def test_systemd_has_nothing_to_say_against_the_units(tmp_path):
    names = []
    for unit in UNITS:
        # Its programs are not here; any that are will do.
        text = re.sub(r"/opt/ojs/bin/\w+", "/bin/true", unit.read_text())
        copy = tmp_path / unit.name.replace("@", "@default")
        copy.write_text(text.replace("/srv/ojs", "/"))
        names.append(str(copy))

    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", *names],
        capture_output=True,
        text=True,
        check=False,
    )

    about_them = [line for line in done.stderr.splitlines() if str(tmp_path) in line]
    assert (done.returncode, about_them) == (0, [])
