"""Reports of guests that start or end, also without a request of Nova."""

import contextlib
import logging
import os
import select
import threading
from collections.abc import Callable

from nova import exception
from nova.common import files
from nova.objects.servers.guest import GuestStatus
from nova.virt.driver import EventHandler
from nova.virt.uml import supervisor

LOG = logging.getLogger(__name__)


class Watcher:
    """A thread that waits until supervisors end, and reports guests that ended or were started. ``power_state(uuid)``:
    the state of a guest (raises GuestNotFound); ``ended(uuid)``: called when a guest ended, before the report."""

    def __init__(self, power_state: Callable[[str], int], ended: Callable[[str], None]) -> None:
        self._power_state, self._ended = power_state, ended
        self._report: EventHandler = lambda _guest: None
        self._lock = threading.Lock()
        self._processes: dict[int, str] = {}
        self._added: list[str] = []
        self._stopped = False
        self._poll = select.poll()
        self._wake: tuple[int, int] | None = None
        self._thread: threading.Thread | None = None

    def start(self, report: EventHandler) -> None:
        self._report = report
        self._wake = os.pipe()
        os.set_blocking(self._wake[1], False)
        self._poll.register(self._wake[0], select.POLLIN)
        self._thread = threading.Thread(target=self._run, name="uml-guests", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped = True
        self._signal()
        if self._thread is not None:
            self._thread.join(timeout=10)

    def watch(self, uuid: str, place: str, report: bool = True) -> None:
        """Watch the supervisor of a guest, and report the current power state unless ``report`` is false."""
        pid = (files.text_of(os.path.join(place, supervisor.PID)) or "0").split()[0]
        with contextlib.suppress(OSError), self._lock:  # A guest that ended already is reported below.
            process = os.pidfd_open(int(pid))
            self._processes[process] = uuid
            self._poll.register(process, select.POLLIN)
        if report:
            self._added.append(uuid)
        self._signal()

    def _signal(self) -> None:
        if self._wake is not None:
            with contextlib.suppress(BlockingIOError):
                os.write(self._wake[1], b"x")

    def _run(self) -> None:
        assert self._wake is not None
        while not self._stopped:
            for descriptor, _event in self._poll.poll():
                if descriptor == self._wake[0]:
                    os.read(descriptor, 512)
                    continue
                with self._lock:
                    uuid = self._processes.pop(descriptor)
                    self._poll.unregister(descriptor)
                    os.close(descriptor)
                self._handle(uuid, ended=True)
            while self._added:
                self._handle(self._added.pop(0), ended=False)

    def _handle(self, uuid: str, ended: bool) -> None:
        try:
            if ended:
                self._ended(uuid)
            self._report(GuestStatus(uuid=uuid, power_state=self._power_state(uuid)))
        except exception.GuestNotFound:
            pass  # nothing to report: the guest was removed
        except Exception:
            LOG.exception("[instance: %s] Cannot report the guest's change; the periodic comparison reports it", uuid)
