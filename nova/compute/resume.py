"""Resume guests that ran before their host was booted ([DEFAULT]resume_guests_state_on_host_boot).

A boot is detected by the boot id of the kernel. The id is stored when all guests are resumed, so a restarted service
continues. Guests are started by operations, a limited number at a time, so requests of users take precedence."""

import logging
import os
import urllib.parse
from collections.abc import Iterable

from nova import context, exception
from nova.common import files
from nova.conf import CONF
from nova.objects.servers import states
from nova.rpcapi.by_hosts import Guests
from nova.virt.driver import Driver

LOG = logging.getLogger(__name__)

# Seconds between two polls of the guests that are starting, and after a failed request.
_POLL = 1.0
_RETRY = 10.0


class Resumption:
    """The guests of one host that must be resumed after the start of the service."""

    def __init__(self, host: str, driver: Driver, guests: Guests) -> None:
        self._host, self._driver, self._guests = host, driver, guests
        # Guests not requested yet, and guests whose start has not ended yet.
        self._waiting: list[str] = []
        self._begun: list[str] = []
        self._file = os.path.join(CONF.state_path, f"boot_id.{urllib.parse.quote(host, safe='')}")
        self.wanted = False

    def begin(self) -> None:
        """Detect if the host was booted since its guests were last resumed."""
        before, now = self._last_boot(), self._driver.boot_id()
        self.wanted = bool(CONF.resume_guests_state_on_host_boot and before and now and before != now)

    def add(self, uuids: Iterable[str]) -> None:
        """Add guests that ran before the boot and do not run now."""
        self._waiting += uuids

    def holds(self, uuid: str) -> bool:
        """Return True if the guest will be started, so that its power state need not be reported."""
        return uuid in self._waiting

    def go_on(self) -> float | None:
        """Start more guests; return the seconds until the next call, or None when all are done."""
        if self._waiting or self._begun:
            try:
                self._request()
            except exception.NovaException as error:
                LOG.warning("Cannot resume guests, %d are waiting, retrying: %s", len(self._waiting), error)
                return _RETRY
        if self._waiting or self._begun:
            return _POLL
        self._note_boot()
        self.wanted = False
        return None

    def _request(self) -> None:
        if not self._begun:
            LOG.info("The host was booted: resuming %d guests, %d at a time", len(self._waiting),
                     CONF.compute.resume_guests_at_once)
        running = {guest.uuid for guest in self._driver.guests.all() if guest.power_state == states.RUNNING}
        resumed = self._guests.resume(
            context.admin(), self._host, [uuid for uuid in self._waiting if uuid not in running], self._begun,
            CONF.compute.resume_guests_at_once)
        self._waiting, self._begun = resumed.waiting, resumed.begun

    def _last_boot(self) -> str:
        try:
            return (files.text_of(self._file) or "").strip()
        except OSError:
            return ""

    def _note_boot(self) -> None:
        """Store the boot id atomically: a truncated id would look like another boot."""
        boot_id = self._driver.boot_id()
        if boot_id == self._last_boot():
            return
        try:
            os.makedirs(CONF.state_path, exist_ok=True)
            files.replace(self._file, f"{boot_id}\n", sync=True)
        except OSError as error:
            LOG.error("The next boot of this host will not be detected: cannot write %s: %s", self._file, error)
