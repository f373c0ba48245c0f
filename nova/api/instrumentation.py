"""Metrics and traces of requests; no-ops while metrics and tracing are disabled."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

import falcon

from nova.telemetry import metrics, tracing

# Key of the WSGI environment under which the dispatcher stores the matching route.
ROUTE = "nova.route"

_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS"})
_NO_ROUTE = "none"

Sink = Callable[..., None]
Wsgi = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


def instrumented(serve: Sink) -> Sink:
    """Return the Falcon sink ``serve`` with metrics by route and a trace span per request."""
    def sink(req: falcon.Request, resp: falcon.Response, **values: Any) -> None:
        if not (metrics.on or tracing.on):
            serve(req, resp, **values)
            return
        started, environ = time.perf_counter(), req.env
        method = _method(environ)
        metrics.API_IN_FLIGHT.add(1)
        with _span(method, environ) as span:
            try:
                serve(req, resp, **values)
            finally:
                route, status = route_of(environ), int(str(resp.status)[:3])
                metrics.API_IN_FLIGHT.add(-1)
                metrics.API_REQUESTS.inc(method, route, str(status))
                metrics.API_SECONDS.observe(time.perf_counter() - started, method, route)
                _end_span(span, method, route, status, resp.get_header("x-openstack-request-id"))

    return sink


def instrumented_metadata(application: Wsgi) -> Wsgi:
    """Return the metadata application with metrics and traces. Paths are no labels, as guests choose them."""
    def wrapped(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterable[bytes]:
        if not (metrics.on or tracing.on):
            return application(environ, start_response)
        statuses = ["500"]

        def begin(status: str, *rest: Any) -> Any:
            statuses.append(status[:3])
            return start_response(status, *rest)

        method = _method(environ)
        with metrics.timed(metrics.METADATA_SECONDS), _span(method, environ) as span:
            try:
                return application(environ, begin)
            finally:
                metrics.METADATA_REQUESTS.inc(statuses[-1])
                _end_span(span, method, "metadata", int(statuses[-1]), None)

    return wrapped


def route_of(environ: dict[str, Any]) -> str:
    """Return the path template, followed by the action name if any; "none" if no route matches."""
    route = environ.get(ROUTE)
    if route is None:
        return _NO_ROUTE
    return f"{route.path} {route.action}" if route.action else str(route.path)


def _method(environ: dict[str, Any]) -> str:
    method = environ["REQUEST_METHOD"]
    return method if method in _METHODS else "other"


def _span(method: str, environ: dict[str, Any]) -> contextlib.AbstractContextManager[Any]:
    if not tracing.on:
        return contextlib.nullcontext()
    from nova.telemetry import tracing_export

    headers = {name: environ[key] for name, key in (("traceparent", "HTTP_TRACEPARENT"),
                                                    ("tracestate", "HTTP_TRACESTATE")) if key in environ}
    return tracing_export.request(method, headers)


def _end_span(span: Any, method: str, route: str, status: int, request_id: str | None) -> None:
    if span is not None:
        from nova.telemetry import tracing_export

        tracing_export.answered(span, method, route, status, request_id)
