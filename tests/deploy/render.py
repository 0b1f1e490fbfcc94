"""Writes deploy/kubernetes/rendered.yaml from the chart: `python -m tests.deploy.render`.

It needs `pip install helm-python-sdk`, which brings Helm's own library and 240 MB; that is why it
is no dependency of the tests.
"""

from __future__ import annotations

import helm_python as helm
import yaml

from .recipes import CHART, RENDERED

HEAD = "# Rendered from deploy/helm/django-ojs with example-values.yaml; see docs/deploy.md.\n"

if __name__ == "__main__":
    values = yaml.safe_load((CHART / "example-values.yaml").read_text())
    with helm.Chart.load(str(CHART)) as chart:
        files = chart.render(values, name="ojs", namespace="jobs")
    names = [name for name in sorted(files) if name.endswith(".yaml")]
    documents = [one for name in names for one in yaml.safe_load_all(files[name]) if one]
    RENDERED.write_text(HEAD + yaml.safe_dump_all(documents, sort_keys=False, explicit_start=True))
