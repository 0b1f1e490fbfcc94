"""OpenTelemetry of the stand-alone project, configured by the usual variables `OTEL_…`.

Traces and metrics are on if an OTLP endpoint is named for them (`OTEL_EXPORTER_OTLP_ENDPOINT`,
`OTEL_EXPORTER_OTLP_TRACES_ENDPOINT`, `…_METRICS_ENDPOINT`) or `OTEL_TRACES_EXPORTER`,
`OTEL_METRICS_EXPORTER` is `otlp`; `none` switches off, as does `OTEL_SDK_DISABLED=true`. All
others (headers, service name, sampler, intervals) are read by the SDK itself. Requires the extra
`otlp`. Knows none of Django's settings.
"""

from __future__ import annotations

from collections.abc import Mapping

from django.core.exceptions import ImproperlyConfigured

ENDPOINT = "OTEL_EXPORTER_OTLP_ENDPOINT"
PROTOCOL, ONLY = "OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf"
METRICS_EXPORTER = "opentelemetry.exporter.otlp.proto.http.metric_exporter.OTLPMetricExporter"


def exports(environ: Mapping[str, str], signal: str) -> bool:
    """Whether the environment wants `TRACES` or `METRICS` to be exported.

    Raises:
        ImproperlyConfigured: by a protocol that this project does not have.
    """
    if environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    named = environ.get(f"OTEL_{signal}_EXPORTER", "")
    is_on = "otlp" in [word.strip() for word in named.split(",")]
    if not named:
        is_on = bool(environ.get(ENDPOINT) or environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT"))
    if is_on:
        for variable in (f"OTEL_EXPORTER_OTLP_{signal}_PROTOCOL", PROTOCOL):
            if environ.get(variable, ONLY) != ONLY:
                raise ImproperlyConfigured(
                    f"{variable} must be {ONLY}, not {environ[variable]!r}: collectors take it at "
                    "port 4318."
                )
    return is_on


def options(environ: Mapping[str, str]) -> dict[str, object]:
    """Return the options of `OJS` that follow from the environment."""
    found: dict[str, object] = {}
    if exports(environ, "TRACES"):
        found["OPENTELEMETRY"] = True
    if exports(environ, "METRICS"):
        found["METRICS_EXPORTER"] = METRICS_EXPORTER
    return found


def start() -> None:
    """Send the spans of this process to the OTLP endpoint, unless something else does already.

    Raises:
        ImproperlyConfigured: the extra is not installed.
    """
    try:
        from opentelemetry import trace
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as problem:
        raise ImproperlyConfigured(
            "The environment names an OTLP endpoint, but the exporter is not installed: "
            "pip install 'django-ojs[otlp]', or set OTEL_SDK_DISABLED=true."
        ) from problem

    from jobs.opentelemetry import resource

    if isinstance(trace.get_tracer_provider(), TracerProvider):
        return  # `opentelemetry-instrument` has one
    provider = TracerProvider(resource=resource())
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
