"""The start and the graceful shutdown of a service: configuration, worker processes and signals."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from nova import bus, conf  # isort: skip  (first: it chooses oslo.service's threading back end)

import cotyledon
import oslo_messaging as messaging

from nova import exception
from nova.service import process
from nova.service.process import workers_of as workers_of
from nova.telemetry import exporters, tracing, worker_stats

LOG = logging.getLogger(__name__)

# Seconds after the deadline in which unfinished work is handed over to other processes; then the process is killed.
GRACE = 10
_START = 5.0  # seconds to wait for the start of a worker that receives SIGTERM while it starts


class Drain:
    """The deadline of a graceful shutdown, shared by all parts of a service. The time starts with the object."""

    def __init__(self) -> None:
        self._until = time.monotonic() + float(conf.CONF.graceful_shutdown_timeout)

    def left(self) -> float:
        """Return the seconds until the deadline, or 0 after it."""
        return max(0.0, self._until - time.monotonic())

    def wait(self, end: Callable[[], object]) -> bool:
        """Run ``end`` in a thread and return True if it returned before the deadline."""
        waiting = threading.Thread(target=end, name="drain", daemon=True)
        waiting.start()
        waiting.join(self.left())
        return not waiting.is_alive()


class Service(Protocol):
    """The code that a worker process runs."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def run(name: str, make: Callable[[messaging.RPCTransport, int], Service], workers: Callable[[], int] = lambda: 1,
        argv: Sequence[str] | None = None, check: Callable[[], object] = lambda: None) -> int:
    """Read the configuration and run ``workers()`` processes of a service until SIGTERM. ``make`` is called in each
    worker after the fork, with the message bus and the number of the worker. ``check`` is called before the fork, after
    the configuration was read, and may raise SystemExit."""
    conf.load(sys.argv[1:] if argv is None else argv)
    tracing.check(name)
    check_key(name)
    check()
    manager, number = supervisor(), workers()
    worker_stats.share(number)
    manager.add(_worker(name, make), workers=number)
    manager.run()
    return 0


def check_key(name: str) -> None:
    """Raise SystemExit with a message if the configured key for signing messages cannot be used."""
    try:
        bus.configured(conf.CONF)
    except exception.InvalidInput as error:
        raise SystemExit(f"{name}: {error.message}") from error


def supervisor() -> cotyledon.ServiceManager:
    """Return a manager that runs worker processes and replaces workers that end. SIGTERM lets the workers finish their
    work within graceful_shutdown_timeout; a second SIGTERM, or SIGINT, kills them. SIGHUP reads the configuration files
    again and replaces the workers, which finish their work, too."""
    faulthandler.enable()  # write a traceback when a worker crashes in native code
    bus.prepare()  # compile the structs once, before the workers fork
    if LOG.isEnabledFor(logging.DEBUG):
        conf.CONF.log_opt_values(LOG, logging.DEBUG)  # secret values are logged as ****
    process.tune_runtime()
    made = cotyledon.ServiceManager(graceful_shutdown_timeout=conf.CONF.graceful_shutdown_timeout + GRACE)
    made.register_hooks(on_terminate=_kill_on_next_signal, on_reload=_reload, on_dead_worker=_log_worker_exit)
    return made


def start_worker(name: str, worker: int) -> None:
    """Start the threads of every worker for memory, metrics and tracing. Call it after the fork."""
    process.start_memory_trimming()
    exporters.start_metrics(name, worker)
    exporters.start_tracing(name)


def stop_event() -> threading.Event:
    """Return an event for a service of one process that SIGTERM or SIGINT sets; a second signal kills the process."""
    stop = threading.Event()

    def handle(_number: int, _frame: object) -> None:
        stop.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, handle)
    return stop


def _kill_on_next_signal() -> None:
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _kill)


def _kill(number: int, _frame: object) -> None:
    LOG.warning("Received %s during shutdown: killing all workers", signal.Signals(number).name)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)


def _log_worker_exit(_service_id: object, worker_id: int, exit_code: int) -> None:
    if exit_code:
        how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"exited with code {exit_code}"
        LOG.error("Worker %d %s; starting a new one. Other workers resume its operations when its leases expire",
                  worker_id, how)


def _reload() -> None:
    LOG.info("Reloading the configuration files after SIGHUP")
    conf.CONF.reload_config_files()


def _worker(name: str, make: Callable[[messaging.RPCTransport, int], Service]) -> type[cotyledon.Service]:
    class Worker(cotyledon.Service):
        def __init__(self, worker_id: Any) -> None:
            super().__init__(worker_id)
            self._id = worker_id
            self._service: Service | None = None
            self._started = threading.Event()

        def run(self) -> None:
            start_worker(name, self._id)
            self._service = make(bus.connect(conf.CONF), self._id)
            bus.prepare()  # again, to compile the structs of drivers and plugins
            refused = ""
            try:
                self._service.start()
            except (exception.HostIdentityMismatch, exception.CallerRefused, exception.InvalidInput) as error:
                refused = str(error)
            if refused:  # outside of the handler, since oslo.log would append the error once more
                LOG.critical("%s", refused)
                os.kill(os.getppid(), signal.SIGTERM)  # a new worker would fail in the same way
                return
            self._started.set()

        def terminate(self) -> None:
            LOG.info("Stopping %s: finishing running operations", name)
            started = time.monotonic()
            # A service that has not started yet, and still waits for other services, has nothing to finish.
            if self._started.wait(_START) and self._service is not None:
                self._service.stop()
            LOG.info("%s stopped after %.1f s", name, time.monotonic() - started)
            exporters.stop_tracing()

    Worker.name = name
    return Worker
