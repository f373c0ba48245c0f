"""Running a service: configuration, workers, signals."""

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
from nova.service import drain, process
from nova.service.process import workers_of as workers_of
from nova.telemetry import exporters, tracing, worker_stats

LOG = logging.getLogger(__name__)

# Seconds that a worker which is told to stop while it starts has to get there.
_START = 5.0


class Service(Protocol):
    """What a worker process runs."""

    def start(self) -> None: ...
    def stop(self) -> None: ...


def run(name: str, make: Callable[[messaging.RPCTransport, int], Service],
        workers: Callable[[], int] = lambda: 1, argv: Sequence[str] | None = None,
        check: Callable[[], object] = lambda: None) -> int:
    """Read the configuration and run ``workers()`` processes of a service until SIGTERM.

    ``make`` is called in the worker, after the fork, with the bus and the number of the worker; ``check`` before the
    fork, when the configuration is read. It may end the program.
    """
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
    """End the program with a clear message if the key of the configuration cannot be used: no worker could."""
    try:
        bus.configured(conf.CONF)
    except exception.InvalidInput as error:
        raise SystemExit(f"{name}: {error.message}") from error


def supervisor() -> cotyledon.ServiceManager:
    """What runs worker processes and replaces those that end.

    SIGTERM lets them finish what they have begun, within graceful_shutdown_timeout; a second one, or SIGINT, ends
    them at once. SIGHUP reads the configuration files again and replaces the workers, which finish in the same way.
    """
    # A worker that crashes shall not do so in silence.
    faulthandler.enable()
    bus.prepare()  # once, for all workers
    if LOG.isEnabledFor(logging.DEBUG):
        conf.CONF.log_opt_values(LOG, logging.DEBUG)  # those that are secret as ****
    process.settle()
    made = cotyledon.ServiceManager(graceful_shutdown_timeout=conf.CONF.graceful_shutdown_timeout + drain.GRACE)
    made.register_hooks(on_terminate=_impatient, on_reload=_read_again, on_dead_worker=_tell_of_its_end)
    return made


def begin(name: str, worker: int) -> None:
    """What every worker does first, after the fork."""
    process.watch()
    exporters.start_metrics(name, worker)
    exporters.start_tracing(name)


def told_to_end() -> threading.Event:
    """For a service of one process: set by SIGTERM or SIGINT; the next one ends it at once."""
    told = threading.Event()

    def tell(_number: int, _frame: object) -> None:
        told.set()
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, signal.SIG_DFL)

    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, tell)
    return told


def _impatient() -> None:
    """From now on this process only waits for its workers: the next signal ends both."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGALRM):
        signal.signal(number, _end)


def _end(number: int, _frame: object) -> None:
    LOG.warning("Ending at once (%s)", signal.Signals(number).name)
    for worker in multiprocessing.active_children():
        worker.kill()
    os._exit(1)


def _tell_of_its_end(_service_id: object, worker_id: int, exit_code: int) -> None:
    if exit_code:
        how = f"was killed by {signal.Signals(-exit_code).name}" if exit_code < 0 else f"ended with {exit_code}"
        LOG.error("Worker %d %s; there will be another one. What it did is taken up when its leases end",
                  worker_id, how)


def _read_again() -> None:
    LOG.info("Reading the configuration again")
    conf.CONF.reload_config_files()


def _worker(name: str, make: Callable[[messaging.RPCTransport, int], Service]) -> type[cotyledon.Service]:
    class Worker(cotyledon.Service):
        def __init__(self, worker_id: Any) -> None:
            super().__init__(worker_id)
            self._id = worker_id
            self._service: Service | None = None
            self._started = threading.Event()

        def run(self) -> None:
            begin(name, self._id)
            self._service = make(bus.connect(conf.CONF), self._id)
            bus.prepare()  # what drivers and plugins brought
            refused = ""
            try:
                self._service.start()
            except (exception.HostIdentityMismatch, exception.CallerRefused, exception.InvalidInput) as error:
                refused = str(error)
            if refused:  # told outside of the handler: the log would have the error once more behind it
                LOG.critical("%s", refused)
                os.kill(os.getppid(), signal.SIGTERM)  # another worker would fare no better
                return
            self._started.set()

        def terminate(self) -> None:
            LOG.info("%s finishes what it has begun", name)
            started = time.monotonic()
            # Whoever still waits for its neighbours has begun nothing.
            if self._started.wait(_START) and self._service is not None:
                self._service.stop()
            LOG.info("%s ends after %.1f s", name, time.monotonic() - started)
            exporters.stop_tracing()

    Worker.name = name
    return Worker


