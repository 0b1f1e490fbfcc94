"""What the Dockerfile, compose.yaml, the chart and the units run, read from those files."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
DOCKERFILE = ROOT / "Dockerfile"
COMPOSE = ROOT / "compose.yaml"
CHART = ROOT / "deploy" / "helm" / "django-ojs"
RENDERED = ROOT / "deploy" / "kubernetes" / "rendered.yaml"
UNITS = sorted((ROOT / "deploy" / "systemd").glob("*.service"))


def instructions() -> list[tuple[str, str]]:
    """The lines of the Dockerfile: instruction and the rest, continuation lines joined."""
    lines = [
        line for line in DOCKERFILE.read_text().splitlines() if not line.lstrip().startswith("#")
    ]
    joined = re.sub(r"\\\n\s*", " ", "\n".join(lines))
    return [(line.split(" ", 1)[0], line.split(" ", 1)[1]) for line in joined.splitlines() if line]


def instruction(name: str) -> str:
    """The last such instruction, which is the image's."""
    return [rest for found, rest in instructions() if found == name][-1]


def image_command() -> list[str]:
    return list(json.loads(instruction("CMD")))


def health_command() -> list[str]:
    return list(json.loads(instruction("HEALTHCHECK").partition("CMD ")[2]))


def image_environment() -> dict[str, str]:
    return dict(word.split("=", 1) for word in shlex.split(instruction("ENV")))


def copied() -> list[tuple[str, str]]:
    """What the image copies from the repository: source and target."""
    words = [rest.split() for name, rest in instructions() if name == "COPY"]
    return [(source, target) for source, target in (one for one in words if len(one) == 2)]


def copy_into(folder: Path, python: str) -> None:
    """Make the image's files in an empty folder: what it copies, and its byte code."""
    for source, target in copied():
        file = ROOT / source
        place = folder / (file.name if target in (".", "./") else target)
        if file.is_dir():
            shutil.copytree(file, place, ignore=shutil.ignore_patterns("__pycache__"))
        else:
            shutil.copy(file, place)
    (step,) = (rest for _, rest in instructions() if "compileall" in rest)
    words = step.partition(" -m ")[2].split()
    subprocess.run([python, "-m", *words], cwd=folder, check=True)


def installation(python: str) -> list[str]:
    """The command that installs the packages, with another Python."""
    (step,) = (rest for _, rest in instructions() if "pip install" in rest)
    _, _, words = step.partition("/bin/pip ")
    return [python, "-m", "pip", *words.split()]


def services() -> dict[str, dict[str, Any]]:
    """The services of compose.yaml that run this image."""
    found: dict[str, dict[str, Any]] = yaml.safe_load(COMPOSE.read_text())["services"]
    return {name: one for name, one in found.items() if one["image"] == "django-ojs"}


def manifests() -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(RENDERED.read_text()))


def of_kind(*kinds: str) -> list[dict[str, Any]]:
    return [one for one in manifests() if one["kind"] in kinds]


def containers() -> Iterator[tuple[str, dict[str, Any], dict[str, Any]]]:
    """Each container of the manifests: the name of its workload, the pod and the container."""
    for one in of_kind("Deployment", "Job"):
        pod = one["spec"]["template"]["spec"]
        for container in pod["containers"]:
            yield one["metadata"]["name"], pod, container


def starts(unit: Path) -> str:
    found = re.search(r"^ExecStart=(.*)$", unit.read_text(), re.M)
    assert found is not None
    return found[1].replace("%i", "default")


def commands() -> dict[str, list[str]]:
    """Every command of ours, by where it is written."""
    found = {"Dockerfile": image_command(), "Dockerfile, health": health_command()}
    for name, service in services().items():
        command = service.get("command", image_command())
        if command[0] == "sh":
            command = shlex.split(command[-1].splitlines()[-1].removeprefix("exec "))
        found[f"compose.yaml, {name}"] = command
    for name, _, container in containers():
        found[f"chart, {name}"] = container["command"]
    for unit in UNITS:
        found[unit.name] = shlex.split(starts(unit).replace("/opt/ojs/bin/", ""))
    return found
