"""Turning the exporters on, where the configuration says so; nothing of theirs is imported before."""

from __future__ import annotations

from nova.conf import CONF
from nova.telemetry import metrics, tracing


def start_metrics(service: str, worker: int | None = 0) -> None:
    """Count, and offer it to Prometheus, if the port of ``service`` (nova-api, ...) is configured.

    ``worker`` is added to the port; None takes the first port of a row that is free. Call it after the fork.
    """
    port = CONF.prometheus[f"{service.removeprefix('nova-')}_port"]
    if port:
        from nova.telemetry import metrics_export

        metrics_export.serve(service, CONF.prometheus.listen, port, worker)


def stop_metrics() -> None:
    """Count no more, and close the port."""
    if metrics.on:
        from nova.telemetry import metrics_export

        metrics_export.stop()


def start_tracing(service: str) -> None:
    """Trace from now on, if it is enabled. Call it after the fork, and after :func:`nova.telemetry.tracing.check`."""
    if CONF.tracing.enabled:
        from nova.telemetry import tracing_export

        tracing_export.start(service)


def stop_tracing() -> None:
    """Send what has not been sent yet, for a few seconds at most."""
    if tracing.on:
        from nova.telemetry import tracing_export

        tracing_export.stop()
