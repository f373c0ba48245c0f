"""Prometheus' side of :mod:`nova.telemetry.metrics`; imported only where counting is on."""

from __future__ import annotations

import logging
import threading
from typing import Any

import prometheus_client as prometheus

import nova
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

_KINDS = {"counter": prometheus.Counter, "gauge": prometheus.Gauge, "histogram": prometheus.Histogram}
# Ports that a worker without a number tries.
_ROW = 64

_server: tuple[Any, threading.Thread] | None = None


def enable(service: str) -> prometheus.CollectorRegistry:
    """Count from now on, from zero; returns where the numbers are."""
    # A second series for each, that nobody asks for.
    prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = prometheus.CollectorRegistry()
    prometheus.ProcessCollector(registry=registry)
    for metric in metrics.DECLARED.values():
        options = {"buckets": metric.buckets} if metric.buckets else {}
        metric.real = _KINDS[metric.kind](metric.name, metric.text, metric.labels, registry=registry, **options)
        if isinstance(metric, metrics.Gauge) and metric.function is not None:
            metric.real.set_function(metric.function)
    metrics.on = True
    metrics.BUILD_INFO.set(1, nova.__version__, service)
    return registry


def serve(service: str, address: str, port: int, worker: int | None) -> None:
    """Offer the numbers over HTTP. A port that is taken is an error in the log, not the end of the service."""
    global _server
    ports = range(port, port + _ROW) if worker is None else (port + worker,)
    registry = enable(service)
    for candidate in ports:
        try:
            _server = prometheus.start_http_server(candidate, address, registry)
        except (OSError, OverflowError) as error:
            reason = error
            continue
        LOG.info("Metrics are at http://%s:%d/metrics", f"[{address}]" if ":" in address else address, candidate)
        return
    disable()
    LOG.error("There are no metrics of %s: cannot listen on %s port %d: %s", service, address, ports[0], reason)


def disable() -> None:
    """Every hook does nothing again."""
    metrics.on = False
    for metric in metrics.DECLARED.values():
        metric.real = None


def stop() -> None:
    global _server
    disable()
    if _server is not None:
        server, thread = _server
        _server = None
        server.shutdown()
        server.server_close()
        thread.join(5)
