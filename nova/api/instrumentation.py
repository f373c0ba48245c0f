"""Metrics and traces of requests; no-ops while metrics and tracing are disabled."""

import contextlib
import time
from collections.abc import Callable, Iterable
from typing import Any

from nova.api.reply import Reply
from nova.http.messages import Environ, Wsgi
from nova.telemetry import metrics, tracing

# Key of the WSGI environment under which the dispatcher stores the matching route.
ROUTE = "nova.route"


def instrumented(serve: Callable[[Environ, Reply], None]) -> Wsgi:
    """Return the WSGI application of ``serve``, with metrics by route and a trace span per request."""
    def application(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
        reply = Reply()
        if not (metrics.on or tracing.on):
            serve(environ, reply)
            return reply.send(environ, start_response)
        started = time.perf_counter()
        method = _method(environ)
        metrics.API_IN_FLIGHT.add(1)
        with _span(method, environ) as span:
            try:
                serve(environ, reply)
            finally:
                route = route_of(environ)
                metrics.API_IN_FLIGHT.add(-1)
                metrics.API_REQUESTS.inc(method, route, str(reply.status))
                metrics.API_SECONDS.observe(time.perf_counter() - started, method, route)
                _end_span(span, method, route, reply.status, reply.headers.get("x-openstack-request-id"))
        return reply.send(environ, start_response)

    return application


def instrumented_metadata(application: Wsgi) -> Wsgi:
    """Return the metadata application with metrics and traces. Guests choose paths, so paths are not used as labels."""
    def wrapped(environ: Environ, start_response: Callable[..., Any]) -> Iterable[bytes]:
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


def route_of(environ: Environ) -> str:
    """Return the path template, followed by the action name if any; "none" if no route matches."""
    route = environ.get(ROUTE)
    if route is None:
        return "none"
    return f"{route.path} {route.action}" if route.action else str(route.path)


def _method(environ: Environ) -> str:
    method = environ["REQUEST_METHOD"]
    return method if method in ("GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "OPTIONS") else "other"


def _span(method: str, environ: Environ) -> contextlib.AbstractContextManager[Any]:
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
