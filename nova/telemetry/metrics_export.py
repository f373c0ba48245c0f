"""The Prometheus exporter of :mod:`nova.telemetry.metrics`, imported only if metrics are enabled."""

import logging
import threading
from typing import Any

import prometheus_client as prometheus

import nova
from nova.telemetry import metrics

LOG = logging.getLogger(__name__)

_PORT_RANGE = 64  # number of ports that a process without a worker number tries

_server: tuple[Any, threading.Thread] | None = None


def enable(service: str) -> prometheus.CollectorRegistry:
    """Enable metrics, starting from zero, and return their registry."""
    # Omit the additional series *_created of each metric.
    prometheus.disable_created_metrics()  # type: ignore[no-untyped-call]
    registry = prometheus.CollectorRegistry()
    prometheus.ProcessCollector(registry=registry)
    for metric in metrics.DECLARED.values():
        options = {"buckets": metric.buckets} if metric.buckets else {}
        kind = getattr(prometheus, metric.kind.title())
        metric.real = kind(metric.name, metric.text, metric.labels, registry=registry, **options)
        if isinstance(metric, metrics.Gauge) and metric.function is not None:
            metric.real.set_function(metric.function)
    metrics.on = True
    metrics.BUILD_INFO.set(1, nova.__version__, service)
    return registry


def serve(service: str, address: str, port: int, worker: int | None) -> None:
    """Enable metrics and serve them over HTTP. Logs an error if no port is free."""
    global _server
    ports = range(port, port + _PORT_RANGE) if worker is None else (port + worker,)
    registry = enable(service)
    for candidate in ports:
        try:
            _server = prometheus.start_http_server(candidate, address, registry)
        except (OSError, OverflowError) as error:
            reason = error
            continue
        LOG.info("Serving metrics at http://%s:%d/metrics", f"[{address}]" if ":" in address else address, candidate)
        return
    disable()
    LOG.error("Metrics of %s are disabled: cannot listen on %s port %d: %s", service, address, ports[0], reason)


def disable() -> None:
    """Disable metrics."""
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
