"""Guests that ran before their host was booted run again ([DEFAULT]resume_guests_state_on_host_boot).

Whether it was booted is told by the boot id of the kernel, which is written down when all guests are looked after: a
service that ends before goes on when it is back. Guests are started by operations, so many at a time: what a user has
done with a server since then comes first.
"""

from __future__ import annotations

import contextlib
import logging
import os
import tempfile
import urllib.parse
from collections.abc import Iterable

from nova import context, exception
from nova.conf import CONF
from nova.objects import states
from nova.rpcapi.guests import Guests
from nova.virt.driver import Driver

LOG = logging.getLogger(__name__)

# Seconds between two looks at those that are being started, and after nobody answered.
_LOOK = 1.0
_AGAIN = 10.0


class Resumption:
    """The guests of one host that are to run again, from the start of its service on."""

    def __init__(self, host: str, driver: Driver, guests: Guests) -> None:
        self._host, self._driver, self._guests = host, driver, guests
        # What has not been begun yet, and what may not have ended.
        self._waiting: list[str] = []
        self._begun: list[str] = []
        self._file = os.path.join(CONF.state_path, f"boot_id.{urllib.parse.quote(host, safe='')}")
        self.wanted = False

    def begin(self) -> None:
        """Find out whether the host was booted since its guests were looked after."""
        before, now = self._last_boot(), self._driver.boot_id()
        self.wanted = bool(CONF.resume_guests_state_on_host_boot and before and now and before != now)

    def add(self, uuids: Iterable[str]) -> None:
        """These guests ran, and do not run now."""
        self._waiting += uuids

    def holds(self, uuid: str) -> bool:
        """Whether the guest will be started: that it does not run is no news."""
        return uuid in self._waiting

    def go_on(self) -> float | None:
        """Have some more started; the seconds until the next call, None: all are looked after."""
        if self._waiting or self._begun:
            try:
                self._ask()
            except exception.NovaException as error:
                LOG.warning("%d guests wait to be started: %s", len(self._waiting), error)
                return _AGAIN
        if self._waiting or self._begun:
            return _LOOK
        self._note_boot()
        self.wanted = False
        return None

    def _ask(self) -> None:
        if not self._begun:
            LOG.info("The host was booted: %d guests are started, %d at a time", len(self._waiting),
                     CONF.compute.resume_guests_at_once)
        running = {guest.uuid for guest in self._driver.guests() if guest.power_state == states.RUNNING}
        told = self._guests.resume(context.admin(), self._host, [uuid for uuid in self._waiting if uuid not in running],
                                   self._begun, CONF.compute.resume_guests_at_once)
        self._waiting, self._begun = told.waiting, told.begun

    # --- the boot id -----------------------------------------------------------------------------------
    def _last_boot(self) -> str:
        try:
            with open(self._file, encoding="utf-8") as file:
                return file.read().strip()
        except OSError:
            return ""

    def _note_boot(self) -> None:
        """Complete or not at all: half a boot id would be another boot."""
        boot_id = self._driver.boot_id()
        if boot_id == self._last_boot():
            return
        draft = ""
        try:
            os.makedirs(CONF.state_path, exist_ok=True)
            descriptor, draft = tempfile.mkstemp(prefix=".boot_id-", dir=CONF.state_path)
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(f"{boot_id}\n")
                file.flush()
                os.fsync(file.fileno())
            os.replace(draft, self._file)
        except OSError as error:
            LOG.error("A boot of this host will not be noticed: %s cannot be written: %s", self._file, error)
            with contextlib.suppress(OSError):
                os.unlink(draft)
