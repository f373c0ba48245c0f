"""Start and stop of the exporters of metrics and traces, which are imported only if they are enabled."""

from nova.conf import CONF
from nova.telemetry import metrics, tracing


def start_metrics(service: str, worker: int | None = 0) -> None:
    """Enable metrics and serve them to Prometheus if a port is configured for ``service`` (nova-api, ...). ``worker``
    is added to the port; with None the first free port of a range is used. Call it after the fork."""
    port = CONF.prometheus[f"{service.removeprefix('nova-')}_port"]
    if port:
        from nova.telemetry import metrics_export

        metrics_export.serve(service, CONF.prometheus.listen, port, worker)


def stop_metrics() -> None:
    """Disable metrics and close their port."""
    if metrics.on:
        from nova.telemetry import metrics_export

        metrics_export.stop()


def start_tracing(service: str) -> None:
    """Start tracing if it is enabled. Call it after the fork, and after :func:`nova.telemetry.tracing.check`."""
    if CONF.tracing.enabled:
        from nova.telemetry import tracing_export

        tracing_export.start(service)


def stop_tracing() -> None:
    """Stop tracing and send the remaining spans, for a few seconds at most."""
    if tracing.on:
        from nova.telemetry import tracing_export

        tracing_export.stop()
