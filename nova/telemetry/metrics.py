"""Declarations of all metrics of Nova, and functions that update them. If metrics are disabled (the default),
Prometheus is not imported and an update costs one comparison. :func:`nova.telemetry.exporters.start_metrics` enables
metrics for this process. Labels never contain ids, names that users choose, or other unbounded values."""

from __future__ import annotations

import contextlib
import datetime
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeVar

from nova import exception

T = TypeVar("T")

# True if this process has metrics. Read it as metrics.on; the exporter sets it.
on = False

DECLARED: dict[str, Metric] = {}  # metrics by their name in Prometheus

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_SHORT = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
_COUNTS = (0, 1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000, 20000)


class Metric:
    """A metric with its name, help text and labels. ``real`` is the object of Prometheus while metrics are enabled."""

    def __init__(self, name: str, text: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = ()) -> None:
        self.name, self.text, self.labels, self.buckets = name, text, labels, buckets
        self.kind = type(self).__name__.lower()
        self.real: Any = None
        DECLARED[name] = self

    def of(self, labels: tuple[str, ...]) -> Any:
        return self.real.labels(*labels) if labels else self.real


class Counter(Metric):
    def inc(self, *labels: str) -> None:
        if self.real is not None:
            self.of(labels).inc()


class Histogram(Metric):
    def observe(self, value: float, *labels: str) -> None:
        if self.real is not None:
            self.of(labels).observe(value)


class Gauge(Metric):
    function: Callable[[], float] | None = None

    def set(self, value: float, *labels: str) -> None:
        if self.real is not None:
            self.of(labels).set(value)

    def add(self, amount: float, *labels: str) -> None:
        if self.real is not None:
            self.of(labels).inc(amount)

    def replace(self, values: Mapping[tuple[str, ...], float]) -> None:
        """Set these values and remove all other values of the metric."""
        if self.real is not None:
            self.real.clear()
            for labels, value in values.items():
                self.of(labels).set(value)

    def watch(self, function: Callable[[], float]) -> None:
        """Let ``function`` return the value whenever Prometheus collects the metric."""
        self.function = function
        if self.real is not None:
            self.real.set_function(function)


# --- API ------------------------------------------------------------------------------------------------
API_REQUESTS = Counter("nova_api_requests_total", "Requests answered, by status and route of the API (for server "
                       "actions with the name of the action).", ("method", "route", "status"))
API_SECONDS = Histogram("nova_api_request_seconds", "Duration of requests.", ("method", "route"), _SECONDS)
API_IN_FLIGHT = Gauge("nova_api_requests_in_flight", "Requests being answered.")
METADATA_REQUESTS = Counter("nova_metadata_requests_total", "Metadata requests answered.", ("status",))
METADATA_SECONDS = Histogram("nova_metadata_request_seconds", "Duration of metadata requests.", (), _SECONDS)

# --- bus ------------------------------------------------------------------------------------------------
BUS_SENT = Counter("nova_bus_sent_total", "Calls, casts and fanouts sent. outcome: success, refused (the server "
                   "answered with an error), failed (no answer, or no broker).", ("method", "kind", "outcome"))
BUS_CALL_SECONDS = Histogram("nova_bus_call_seconds", "Time that callers waited for replies.", ("method",), _SECONDS)
BUS_HANDLED = Counter("nova_bus_handled_total", "Messages handled. outcome: success, refused (an error of "
                      "Nova), failed (an unexpected error).", ("method", "outcome"))
BUS_HANDLED_SECONDS = Histogram("nova_bus_handled_seconds", "Duration of handling a message.", ("method",), _SECONDS)
BUS_QUEUE_SECONDS = Histogram("nova_bus_queue_seconds", "Time from sending to the start of handling, by the clocks of "
                              "both hosts.", ("method",), _SECONDS)
BUS_DROPPED = Counter("nova_bus_dropped_total", "Messages dropped because they had expired.", ("method",))

# --- operations -----------------------------------------------------------------------------------------
STEPS = Counter("nova_steps_total", "Steps of operations run by this process. outcome: success, failed, unavailable "
                "(retried), stale (another process runs the action).", ("operation", "step", "direction", "outcome"))
STEP_SECONDS = Histogram("nova_step_seconds", "Duration of steps; in a conductor including the transaction.",
                         ("operation", "step", "direction"), _SECONDS)
OPERATIONS = Counter("nova_operations_total", "Operations ended.", ("operation", "outcome"))
OPERATION_SECONDS = Histogram("nova_operation_seconds", "Time from the acceptance of an operation to its end.",
                              ("operation", "outcome"), _SECONDS)
RETRIES = Counter("nova_operation_retries_total", "Operations that continued on another host after a failure.",
                  ("operation",))
TAKEOVERS = Counter("nova_takeovers_total", "Operations that this process took over. reason: lease (expired), restart.",
                    ("operation", "reason"))
CLAIMS = Counter("nova_claims_total", "Claims of resources. outcome: made, lost (another request was faster).",
                 ("outcome",))
UNFINISHED = Gauge("nova_actions_unfinished", "Running actions in the whole deployment. state: conductor, host, "
                   "undoing, waiting (for a retry), overdue (the lease expired).", ("operation", "state"))
SERVICES = Gauge("nova_services", "Services in the whole deployment. state: up, down, disabled (up or down).",
                 ("binary", "state"))
NOTIFICATIONS = Counter("nova_notifications_total", "Notifications that left the outbox. outcome: sent, dropped (too "
                        "old, or too many, while the broker was away).", ("outcome",))
NOTIFICATIONS_WAITING = Gauge("nova_notifications_waiting", "Notifications not sent yet in the whole deployment.")

# --- scheduler ------------------------------------------------------------------------------------------
SELECT_SECONDS = Histogram("nova_scheduler_select_seconds", "Duration of host selections. outcome: success, "
                           "no_valid_host, failed.", ("outcome",), _SHORT)
CANDIDATES = Histogram("nova_scheduler_candidates", "Nodes that fitted a request.", (), _COUNTS)
SCHEDULER_NODES = Gauge("nova_scheduler_nodes", "Nodes in this scheduler's table.")
FLEET_READ_SECONDS = Histogram("nova_scheduler_fleet_read_seconds", "Duration of reads of all nodes. outcome: success, "
                               "failed.", ("outcome",), _SECONDS)
FLEET_GAPS = Counter("nova_scheduler_fleet_gaps_total", "Lost messages about changes of nodes.")

# --- database -------------------------------------------------------------------------------------------
DB_STATEMENTS = Counter("nova_db_statements_total", "SQL statements, by their first word.", ("verb",))
DB_SECONDS = Histogram("nova_db_transaction_seconds", "Duration of transactions including retries.", ("mode",),
                       _SECONDS)
DB_RETRIES = Counter("nova_db_transaction_retries_total", "Retried transactions, by error.", ("error",))
DB_POOL = Gauge("nova_db_connections_in_use", "Connections of the pool in use.")

# --- compute --------------------------------------------------------------------------------------------
ORDERS = Gauge("nova_compute_orders", "Orders of this host that are running or waiting.")
GUESTS = Gauge("nova_compute_guests", "Guests on this host.", ("power_state",))
UNKNOWN_GUESTS = Gauge("nova_compute_unknown_guests", "Guests on this host without a server in the database.")
FILTERS_RESTORED = Counter("nova_network_filters_restored_total", "Repairs of the packet filters of guests after "
                           "another program changed or flushed them.")
IMAGE_CACHE = Gauge("nova_compute_image_cache_bytes", "Disk space used by cached images of this host.")
IMAGE_CACHE_LIMIT = Gauge("nova_compute_image_cache_limit_bytes", "Maximum disk space of cached images; 0: no limit.")

BUILD_INFO = Gauge("nova_build_info", "Always 1; the labels name the version and the service.", ("version", "service"))


# --- functions that update several metrics ----------------------------------------------------------------
_NOTHING = contextlib.nullcontext()


def timed(metric: Histogram, *labels: str) -> contextlib.AbstractContextManager[None]:
    """Observe the duration of the block, also if it raises an error."""
    return _observed(lambda _outcome, seconds: metric.observe(seconds, *labels), {}) if on else _NOTHING


@contextlib.contextmanager
def _observed(record: Callable[[str, float], None], outcomes: Mapping[type[Exception], str]) -> Iterator[None]:
    """Call ``record`` with the outcome and the duration of the block. The outcome is success, the first of ``outcomes``
    that matches the error, or failed."""
    started = time.perf_counter()
    outcome = "success"
    try:
        yield
    except BaseException as error:
        outcome = next((name for kind, name in outcomes.items() if isinstance(error, kind)), "failed")
        raise
    finally:
        record(outcome, time.perf_counter() - started)


_STEP_OUTCOMES: Mapping[type[Exception], str] = {
    exception.StaleReport: "stale", exception.ServiceUnavailable: "unavailable",
    exception.HypervisorUnavailable: "unavailable"}


def step(operation: str, name: str, undo: bool) -> contextlib.AbstractContextManager[None]:
    """Observe a step of an operation in the block."""
    direction = "undo" if undo else "do"

    def record(outcome: str, seconds: float) -> None:
        STEPS.inc(operation, name, direction, outcome)
        STEP_SECONDS.observe(seconds, operation, name, direction)

    return _observed(record, _STEP_OUTCOMES) if on else _NOTHING


def finished(operation: str, outcome: str, started_at: datetime.datetime) -> None:
    """Count the end of an operation that was accepted at ``started_at``."""
    if on:
        seconds = (datetime.datetime.now(datetime.UTC) - started_at).total_seconds()
        OPERATIONS.inc(operation, outcome)
        OPERATION_SECONDS.observe(max(0.0, seconds), operation, outcome)


def selecting() -> contextlib.AbstractContextManager[None]:
    """Observe a selection of hosts in the block."""
    return _observed(lambda outcome, seconds: SELECT_SECONDS.observe(seconds, outcome),
                     {exception.NoValidHost: "no_valid_host"}) if on else _NOTHING


_SENT_OUTCOMES: Mapping[type[Exception], str] = {
    exception.ServiceUnavailable: "failed", exception.NovaException: "refused"}


def sent(method: str, kind: str, send: Callable[[], T]) -> T:
    """Call ``send``, which sends a message and returns the reply, and count the message."""
    def record(outcome: str, seconds: float) -> None:
        BUS_SENT.inc(method, kind, outcome)
        if kind == "call":
            BUS_CALL_SECONDS.observe(seconds, method)

    with _observed(record, _SENT_OUTCOMES):
        return send()


def handled(method: str, sent_at: Any, handle: Callable[[], dict[str, Any] | None]) -> dict[str, Any] | None:
    """Call ``handle`` for a message that was sent at ``sent_at`` (seconds since the epoch, or None), and count it."""
    if isinstance(sent_at, int | float):
        # The clocks of two hosts may differ, so do not report negative times.
        BUS_QUEUE_SECONDS.observe(max(0.0, time.time() - sent_at), method)
    started = time.perf_counter()
    answer = handle()
    error = (answer or {}).get("e")
    outcome = "success" if error is None else "failed" if error[0] == "InternalError" else "refused"
    BUS_HANDLED.inc(method, outcome)
    BUS_HANDLED_SECONDS.observe(time.perf_counter() - started, method)
    return answer
