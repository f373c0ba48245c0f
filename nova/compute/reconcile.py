"""Reconciliation of the guests on a host with the database.

A guest is removed only if, in the database, its server is deleted or the guest is evicted from this host. State changes
that no operation caused are reported, and the conductor decides. Networks are restored when the service starts. Guests
unknown to the database are reported and handled according to [compute]unknown_guests. Guests that ran before their host
was booted are resumed ([DEFAULT]resume_guests_state_on_host_boot)."""

import bisect
import functools
import logging
import os
import random
import threading
import time
import urllib.parse
from collections.abc import Callable, Collection, Iterable, Sequence

from nova import bus, context, exception
from nova.common import files
from nova.compute.host import Machine
from nova.compute.reports import pages
from nova.compute.runner import Runner
from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.guest import Eviction, GuestStatus, Whereabouts
from nova.operations.framework.guest_driver import InProgress
from nova.rpcapi.by_hosts import Guests
from nova.telemetry import metrics
from nova.virt.driver import Driver

LOG = logging.getLogger(__name__)

_PAGE = 500
# Seconds between the event that a guest stopped and the check of its power state: the guest may be rebooting itself.
_REBOOT_DELAY = 2.0
# Power states of guests that do not run after a boot of their host.
_OFF = (states.SHUTDOWN, states.CRASHED)
# Seconds between two polls of the guests that are starting, and until a failed request is repeated.
_POLL, _RETRY = 1.0, 10.0
# Maximum number of attempts to remove an evicted guest that an operation may still use, one second apart.
_REAPS = 10


class Reconciler:
    """Compares the guests on this host with the database. ``assign`` updates the set of shared nodes that the host
    manages: another host may have taken over nodes, with new servers on them, while this one was frozen."""

    def __init__(self, machine: Machine, guests: Guests, runner: Runner,
                 assign: Callable[[], object] = lambda: None) -> None:
        self.machine, self._guests, self._runner, self._assign = machine, guests, runner, assign
        self._unknown = UnknownGuests(machine)
        self._resumption = Resumption(machine.name, machine.driver, guests)
        self._timers: set[threading.Timer] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, ctx: context.RequestContext) -> None:
        """Restore networks, remove evicted guests, and compare all guests, when the service starts."""
        self.machine.network.start([instance for page in pages(self._guests.on_host, ctx, self.machine.name, _PAGE)
                                    for instance in page]
                                   if self.machine.network.needs_guests else [])
        self._evict(ctx)
        self._resumption.begin()
        self._compare_pages(ctx, report=False)

    def resume_guests(self) -> None:
        """Start guests that ran before the host was booted. Called after the service has begun to accept orders."""
        pause = self._resumption.go_on()
        if pause is not None:
            self._after(pause, self.resume_guests)

    def stop(self) -> None:
        with self._lock:
            self._stopped = True
            timers = list(self._timers)
        for timer in timers:
            timer.cancel()

    def compare(self) -> None:
        """Remove evicted guests and report all power states that differ from the database."""
        self._assign()
        self._evict(context.admin())
        self._compare_pages(context.admin(), report=True)

    def heartbeat_resumed(self) -> None:
        """Compare guests soon and once more later, after conductors missed heartbeats and may have considered this host
        down. If the broker was down, all hosts return at the same time, so the delay is random."""
        self._after(random.uniform(0, CONF.report_interval),  # noqa: S311
                    functools.partial(bus.retry_until_available, self.compare, "a conductor"))
        self.compare_later()

    def compare_later(self) -> None:
        """Compare the guests again later: a conductor that considered this host down may still be storing evictions."""
        self._after(CONF.service_down_time * random.uniform(1, 1.5), self._compare_again)  # noqa: S311

    def _compare_again(self) -> None:
        try:
            self.compare()
        except exception.NovaException as error:
            LOG.warning("Cannot compare guests with the database, retrying at the next interval: %s", error)

    # --- evicted guests ------------------------------------------------------------------
    def _evict(self, ctx: context.RequestContext) -> None:
        for page in pages(self._guests.evictions, ctx, self.machine.name, _PAGE):
            self._remove(ctx, page)

    def _remove(self, ctx: context.RequestContext, guests: Sequence[Eviction | Whereabouts]) -> None:
        removed = []
        if guests:
            self._assign()
        for guest in guests:
            if self._runner.busy(guest.uuid):  # for example a step that the conductor sent again after a restart
                self._after(1, self.reap, guest.uuid)
                continue
            LOG.info("[instance: %s] Removing the guest: the server is deleted or was evicted from this host%s",
                     guest.uuid, " (keeping its disks)" if guest.keep_disks else "")
            try:
                self.machine.driver.guests.remove_orphan(guest.uuid, guest.keep_disks)
                self.machine.network.unplug_guest(guest.uuid)
                self.machine.shares.disconnect_guest(guest.uuid)
                removed.append(guest)
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Cannot remove the guest, retrying at the next interval: %s", guest.uuid,
                            error)
        if removed:
            self._guests.evicted(ctx, self.machine.name, [guest.uuid for guest in removed],
                                 {guest.uuid: guest.since for guest in removed if guest.since is not None})

    # --- comparing -----------------------------------------------------------------------------------
    def _compare_pages(self, ctx: context.RequestContext, report: bool) -> None:
        """Compare the guests on this host with the database, page by page in the order of uuids. Unless ``report`` is
        True, report only power states that are missing in the database."""
        # Read the guests before the database, so that a guest that is created meanwhile is not considered unknown.
        running = {guest.uuid: guest.power_state for guest in self.machine.driver.guests.all()}
        here = sorted(running.keys() | self.machine.driver.guests.traces() | self.machine.network.guests())
        start = 0
        unknown: list[str] = []
        for page in pages(self._guests.expected, ctx, self.machine.name, _PAGE):
            end = len(here) if len(page) < _PAGE else bisect.bisect_right(here, page[-1].uuid)
            belongs = {guest.uuid for guest in page}
            unknown += self._unclaimed(ctx, [uuid for uuid in here[start:end] if uuid not in belongs], running)
            self._put_back(ctx, [guest.uuid for guest in page
                                 if guest.settled and not guest.moving and guest.uuid not in running])
            if not report and self._resumption.wanted:
                self._resumption.add(guest.uuid for guest in page if guest.settled and not guest.moving
                                     and guest.power_state == states.RUNNING and not self._runner.busy(guest.uuid)
                                     and running.get(guest.uuid, states.SHUTDOWN) in _OFF)
            changed = [self._now(guest.uuid) for guest in page if guest.settled
                       and (report or guest.power_state == states.NOSTATE)
                       and running.get(guest.uuid, states.SHUTDOWN) != guest.power_state
                       and not self._runner.busy(guest.uuid) and not self._resumption.holds(guest.uuid)]
            if changed:
                self._guests.power_states(ctx, self.machine.name, changed)
            start = end
        self._unknown.seen(unknown)

    def _put_back(self, ctx: context.RequestContext, uuids: Sequence[str]) -> None:
        """Restore missing guests: an aborted move may have renamed their disks while this host was down."""
        missing = [uuid for uuid in uuids if not self._runner.busy(uuid)]
        if not missing or "move" not in self.machine.driver.capabilities:
            return
        for instance in self._guests.described(ctx, missing):
            try:
                self.machine.driver.cold_migration.revert(instance)
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Cannot restore the missing guest, retrying: %s", instance.uuid, error)

    def _unclaimed(self, ctx: context.RequestContext, uuids: Sequence[str], running: Collection[str]) -> list[str]:
        """Handle guests and files of servers that the database does not assign to this host: remove those that must
        leave, and return the guests unknown to the database. Files without a guest are only removed if their server is
        deleted, because the directory may be shared storage."""
        unknown = []
        for start in range(0, len(uuids), _PAGE):
            page = list(uuids[start:start + _PAGE])
            whereabouts = {where.uuid: where for where in self._guests.whereabouts(ctx, self.machine.name, page)}
            self._remove(ctx, [where for where in whereabouts.values() if where.must_leave])
            unknown += [uuid for uuid in page if uuid in running and not self._runner.busy(uuid) and (
                uuid not in whereabouts or not (
                    whereabouts[uuid].must_leave or self.machine.name in whereabouts[uuid].possible_hosts))]
        return unknown

    def reap(self, uuid: str, attempts: int = _REAPS) -> None:
        """Remove a guest that must leave this host according to the database. Repeat the attempt each second while an
        operation may still use the guest; after the final attempt the next comparison removes the guest."""
        waits = self._runner.busy(uuid)
        try:
            for where in [] if waits else self._guests.whereabouts(context.admin(), self.machine.name, [uuid]):
                if where.must_leave:
                    self._remove(context.admin(), [where])
                else:
                    waits = where.since is not None  # evicted, but this is still a possible host of the server
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Cannot check if the guest must leave this host, the next comparison of guests "
                        "checks it: %s", uuid, error)
        if waits and attempts > 1:
            self._after(1, functools.partial(self.reap, uuid, attempts - 1))

    # --- state changes that no operation caused -------------------------------------------------------
    def _now(self, uuid: str) -> GuestStatus:
        """Return the current power state of the guest; a missing guest counts as shut down."""
        try:
            return GuestStatus(uuid=uuid, power_state=self.machine.driver.guests.power_state(uuid))
        except exception.GuestNotFound:
            return GuestStatus(uuid=uuid, power_state=states.SHUTDOWN)

    def guest_changed(self, guest: GuestStatus) -> None:
        """Report a change of a guest unless it is caused by an operation of this host."""
        if self._stopped or self._runner.busy(guest.uuid):
            return
        self._after(_REBOOT_DELAY if guest.power_state == states.SHUTDOWN else 0.1, self._report_changed, guest.uuid)

    def _after(self, delay: float, function: Callable[..., None], *args: str) -> None:
        """Call the function after ``delay`` seconds, unless the service has stopped."""
        def call() -> None:
            with self._lock:
                self._timers.discard(timer)
                stopped = self._stopped
            if not stopped:
                function(*args)

        timer = threading.Timer(delay, call)
        timer.daemon = True
        with self._lock:
            if self._stopped:
                return
            self._timers.add(timer)
        timer.start()

    def _report_changed(self, uuid: str) -> None:
        if self._runner.busy(uuid) or self._resumption.holds(uuid):
            return
        try:
            now = self._now(uuid)
        except exception.NovaException as error:
            LOG.info("[instance: %s] Cannot read the power state: %s", uuid, error)
            return
        try:
            self._guests.power_states(context.admin(), self.machine.name, [now])
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Cannot report the power state, retrying at the next interval: %s", uuid, error)


class UnknownGuests:
    """Handling of unknown guests as configured in [compute]unknown_guests."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        # uuid -> time since when the guest is unknown
        self._since: dict[str, float] = {}
        self._logged: set[str] = set()

    def seen(self, uuids: Sequence[str]) -> None:
        """Store the unknown guests of the current comparison. Apply the configured action to guests that have been
        unknown for [compute]unknown_guests_age seconds."""
        now = time.monotonic()
        self._since = {uuid: self._since.get(uuid, now) for uuid in uuids}
        self._logged &= self._since.keys()
        metrics.UNKNOWN_GUESTS.set(len(uuids))
        for uuid in self._since.keys() - self._logged:
            LOG.warning("[instance: %s] Guest on host %s is unknown to the database; configured action "
                        "([compute]unknown_guests): %s", uuid, self._machine.name, CONF.compute.unknown_guests)
            self._logged.add(uuid)
        if CONF.compute.unknown_guests == "keep":
            return
        old = [uuid for uuid, since in self._since.items() if now - since >= CONF.compute.unknown_guests_age]
        if len(old) > CONF.compute.unknown_guests_max:
            LOG.error("%d guests on host %s are unknown to the database, more than [compute]unknown_guests_max: "
                      "no action is taken", len(old), self._machine.name)
            return
        for uuid in old:
            try:
                if CONF.compute.unknown_guests == "stop":
                    self._machine.driver.guests.stop(uuid)
                else:
                    self._machine.driver.guests.remove_orphan(uuid)
                    self._machine.network.unplug_guest(uuid)
                    self._machine.shares.disconnect_guest(uuid)
            except InProgress as change:
                LOG.info("[instance: %s] Unknown guest: began to %s: %s", uuid, CONF.compute.unknown_guests, change)
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Unknown guest: action %s failed, retrying at the next interval: %s", uuid,
                            CONF.compute.unknown_guests, error)


class Resumption:
    """The guests of one host that must be resumed after the start of the service. A boot is detected by the boot id of
    the kernel. The id is stored when all guests are resumed: a service that restarts earlier resumes the remaining.
    Operations start the guests, a limited number at a time, so that requests of users are not delayed."""

    def __init__(self, host: str, driver: Driver, guests: Guests) -> None:
        self._host, self._driver, self._guests = host, driver, guests
        # Guests whose start has not been requested yet, and guests whose start has not ended yet.
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
        boot_id = self._driver.boot_id()
        try:
            if boot_id != self._last_boot():
                os.makedirs(CONF.state_path, exist_ok=True)
                # Replace the file atomically: a truncated id would look like another boot.
                files.replace(self._file, f"{boot_id}\n", sync=True)
        except OSError as error:
            LOG.error("The next boot of this host will not be detected: cannot write %s: %s", self._file, error)
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
