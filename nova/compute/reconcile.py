"""Keeps the guests of a host and the rows together.

A guest is removed only on the word of a row: its server is deleted, or an eviction says that it may not stay here.
Guests that changed by themselves are reported (the conductor decides), and networks are put right when the service
starts. A guest that no row knows is reported, and left to what the operator has chosen.
"""

from __future__ import annotations

import bisect
import functools
import logging
import random
import threading
from collections.abc import Callable, Collection, Sequence

from nova import bus, context, exception
from nova.compute.host import Machine
from nova.compute.resume import Resumption
from nova.compute.runner import Runner
from nova.compute.unknown import UnknownGuests
from nova.conf import CONF
from nova.objects import states
from nova.objects.guest import Eviction, GuestStatus, Whereabouts
from nova.objects.instance import Instance
from nova.rpcapi.guests import Guests

LOG = logging.getLogger(__name__)

_PAGE = 500
# A guest that stops may be about to start again (a reboot from inside): look again after this.
_SETTLE = 2.0
# How guests are that do not run after a boot of their host.
_OFF = (states.SHUTDOWN, states.CRASHED)


class Reconciler:
    """Compares what runs here with what should."""

    def __init__(self, machine: Machine, guests: Guests, runner: Runner) -> None:
        self.machine = machine
        self._guests = guests
        self._runner = runner
        self._unknown = UnknownGuests(machine)
        self._resumption = Resumption(machine.name, machine.driver, guests)
        self._timers: set[threading.Timer] = set()
        self._lock = threading.Lock()
        self._stopped = False

    def start(self, ctx: context.RequestContext) -> None:
        """The service starts: networks first, then guests that may not stay, or of which nobody knows."""
        self.machine.network.start(self._instances(ctx) if self.machine.network.needs_guests else [])
        self._evict(ctx)
        self._resumption.begin()
        self._walk(ctx, tell=False)

    def resume_guests(self) -> None:
        """Orders are taken: guests that ran before the host was booted are started."""
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
        """Remove guests that may not stay and report every power state that a row does not have."""
        self._evict(context.admin())
        self._walk(context.admin(), tell=True)

    def heard_again(self) -> None:
        """Nobody heard this host for long: what was decided without it left guests that belong elsewhere or nowhere.

        They are compared soon and once more later. When it was the broker that was away all hosts are heard again at
        the same moment: they do not all ask then.
        """
        self._after(random.uniform(0, CONF.report_interval),  # noqa: S311
                    functools.partial(bus.retry_until_available, self.compare, "a conductor"))
        self.compare_later()

    def compare_later(self) -> None:
        """Compare once more: a conductor that found the host away may be about to write what follows from it."""
        self._after(CONF.service_down_time * random.uniform(1, 1.5), self._compare_again)  # noqa: S311

    def _compare_again(self) -> None:
        try:
            self.compare()
        except exception.NovaException as error:
            LOG.warning("Guests and rows were not compared again: %s", error)

    # --- guests that may not stay ------------------------------------------------------------------
    def _evict(self, ctx: context.RequestContext) -> None:
        marker = None
        while True:
            page = self._guests.evictions(ctx, self.machine.name, _PAGE, marker)
            self._remove(ctx, page)
            if len(page) < _PAGE:
                return
            marker = page[-1].uuid

    def _remove(self, ctx: context.RequestContext, guests: Sequence[Eviction | Whereabouts]) -> None:
        """Remove these guests, and tell."""
        removed = []
        for guest in guests:
            if self._runner.busy(guest.uuid):
                continue
            LOG.info("[instance: %s] Its guest may not stay on this host: it is removed%s", guest.uuid,
                     " (its disks stay)" if guest.keep_disks else "")
            try:
                self.machine.driver.remove_orphan(guest.uuid, guest.keep_disks)
                self.machine.network.unplug_guest(guest.uuid)
                self.machine.shares.disconnect_guest(guest.uuid)
                removed.append(guest)
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Its guest is removed later: %s", guest.uuid, error)
        if removed:
            self._guests.evicted(ctx, self.machine.name, [guest.uuid for guest in removed],
                                 {guest.uuid: guest.since for guest in removed if guest.since is not None})

    # --- comparing -----------------------------------------------------------------------------------
    def _walk(self, ctx: context.RequestContext, tell: bool) -> None:
        """Compare the guests here with the rows, side by side in the order of uuids, a page at a time.

        Without ``tell`` only power states that no row knows are reported.
        """
        # Taken before the rows are read: a guest that comes up meanwhile is not taken for an unknown one.
        running = {guest.uuid: guest.power_state for guest in self.machine.driver.guests()}
        here = sorted(running.keys() | self.machine.driver.traces() | self.machine.network.guests())
        marker, start = None, 0
        unknown: list[str] = []
        while True:
            page = self._guests.expected(ctx, self.machine.name, _PAGE, marker)
            last = len(page) < _PAGE
            end = len(here) if last else bisect.bisect_right(here, page[-1].uuid)
            belongs = {guest.uuid for guest in page}
            unknown += self._unclaimed(ctx, [uuid for uuid in here[start:end] if uuid not in belongs], running)
            self._put_back(ctx, [guest.uuid for guest in page
                                 if guest.settled and not guest.moving and guest.uuid not in running])
            if not tell and self._resumption.wanted:
                self._resumption.add(guest.uuid for guest in page if guest.settled and not guest.moving
                                     and guest.power_state == states.RUNNING and not self._runner.busy(guest.uuid)
                                     and running.get(guest.uuid, states.SHUTDOWN) in _OFF)
            changed = [self._now(guest.uuid) for guest in page if guest.settled
                       and (tell or guest.power_state == states.NOSTATE)
                       and running.get(guest.uuid, states.SHUTDOWN) != guest.power_state
                       and not self._runner.busy(guest.uuid) and not self._resumption.holds(guest.uuid)]
            if changed:
                self._guests.power_states(ctx, self.machine.name, changed)
            if last:
                break
            marker, start = page[-1].uuid, end
        self._unknown.seen(unknown)

    def _put_back(self, ctx: context.RequestContext, uuids: Sequence[str]) -> None:
        """Guests that are missing: a move that was given up while this host was away may have set them aside."""
        missing = [uuid for uuid in uuids if not self._runner.busy(uuid)]
        if not missing or "move" not in self.machine.driver.capabilities:
            return
        for instance in self._guests.described(ctx, missing):
            try:
                self.machine.driver.revert_move(instance)
            except exception.NovaException as error:
                LOG.warning("[instance: %s] Its guest is missing and was not put back: %s", instance.uuid, error)

    def _unclaimed(self, ctx: context.RequestContext, uuids: Sequence[str], running: Collection[str]) -> list[str]:
        """Guests and files that are not among the rows of this host: those that may go, go.

        Returns the guests that no row tells what to do with. Files alone are left where they are unless their server
        is deleted: the directory may be shared storage.
        """
        unknown = []
        for start in range(0, len(uuids), _PAGE):
            page = list(uuids[start:start + _PAGE])
            found = {where.uuid: where for where in self._guests.whereabouts(ctx, self.machine.name, page)}
            self._remove(ctx, [where for where in found.values() if where.gone])
            unknown += [uuid for uuid in page if uuid in running and not self._runner.busy(uuid) and (
                uuid not in found or not (found[uuid].gone or self.machine.name in found[uuid].places))]
        return unknown

    def reap(self, uuid: str) -> None:
        """An operator says that an orphaned guest goes now (audit --repair); a row has to say so, too."""
        found = self._guests.whereabouts(context.admin(), self.machine.name, [uuid])
        self._remove(context.admin(), [where for where in found if where.gone])

    # --- guests that change by themselves ------------------------------------------------------------
    def _now(self, uuid: str) -> GuestStatus:
        """How the guest is at this moment; one that is gone shows as not running."""
        try:
            return GuestStatus(uuid=uuid, power_state=self.machine.driver.power_state(uuid))
        except exception.GuestNotFound:
            return GuestStatus(uuid=uuid, power_state=states.SHUTDOWN)

    def guest_changed(self, guest: GuestStatus) -> None:
        """The hypervisor says that a guest changed; what our own operations do is left out."""
        if self._stopped or self._runner.busy(guest.uuid):
            return
        delay = _SETTLE if guest.power_state == states.SHUTDOWN else 0.1
        self._after(delay, self._settled, guest.uuid)

    def _after(self, delay: float, function: Callable[..., None], *args: str) -> None:
        """Call it in ``delay`` seconds, unless we have stopped by then."""
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

    def _settled(self, uuid: str) -> None:
        if self._runner.busy(uuid) or self._resumption.holds(uuid):
            return
        try:
            now = self._now(uuid)
        except exception.NovaException as error:
            LOG.info("[instance: %s] Its power state is unknown: %s", uuid, error)
            return
        try:
            self._guests.power_states(context.admin(), self.machine.name, [now])
        except exception.NovaException as error:
            LOG.warning("[instance: %s] Its power state was not reported: %s", uuid, error)

    def _instances(self, ctx: context.RequestContext) -> list[Instance]:
        found: list[Instance] = []
        marker = None
        while True:
            page = self._guests.on_host(ctx, self.machine.name, _PAGE, marker)
            found += page
            if len(page) < _PAGE:
                return found
            marker = page[-1].uuid
