"""Keeps the guests of a host and the rows together.

Guests that no row wants are removed, guests that changed by themselves are reported (the
conductor decides), and networks are put right when the service starts.
"""

from __future__ import annotations

import bisect
import logging
import threading
from collections.abc import Callable, Collection, Sequence

from nova import context, exception
from nova.compute.host import Machine
from nova.compute.runner import Runner
from nova.conf import CONF
from nova.objects import states
from nova.objects.compute import GuestStatus
from nova.objects.instance import Instance
from nova.rpcapi.engine import Guests

LOG = logging.getLogger(__name__)

_PAGE = 500
# A guest that stops may be about to start again (a reboot from inside): look again after this.
_SETTLE = 2.0


class Reconciler:
    """Compares what runs here with what should."""

    def __init__(self, machine: Machine, guests: Guests, runner: Runner) -> None:
        self.machine = machine
        self._guests = guests
        self._runner = runner
        self._timers: set[threading.Timer] = set()
        self._stopped = False

    def start(self, ctx: context.RequestContext) -> None:
        """The service starts: networks first, then guests that have no row any more, or of which nobody knows."""
        wanted = self.machine.network.needs_guests or CONF.resume_guests_state_on_host_boot
        instances = self._instances(ctx) if wanted else []
        self.machine.network.start(instances)
        self._walk(ctx, tell=False)
        if CONF.resume_guests_state_on_host_boot:
            self._restart_guests(instances)

    def stop(self) -> None:
        self._stopped = True
        for timer in list(self._timers):
            timer.cancel()

    def compare(self) -> None:
        """Remove guests without a row and report every power state that a row does not have."""
        self._walk(context.admin(), tell=True)

    def compare_later(self) -> None:
        """Compare once more: a conductor that found the host away may be about to write what follows from it."""
        self._after(CONF.service_down_time, self._compare_again)

    def _compare_again(self) -> None:
        if self._stopped:
            return
        try:
            self.compare()
        except exception.NovaException as error:
            LOG.warning("Guests and rows were not compared again: %s", error)

    def _walk(self, ctx: context.RequestContext, tell: bool) -> None:
        """Compare the guests here with the rows, side by side in the order of uuids, a page at a time.

        Without ``tell`` only power states that no row knows are reported.
        """
        # Taken before the rows are read: a guest that comes up meanwhile is not taken for a stranger.
        running = {guest.uuid: guest.power_state for guest in self.machine.driver.guests()}
        here = sorted(running.keys() | self.machine.driver.traces())
        marker, start = None, 0
        while True:
            page = self._guests.expected(ctx, self.machine.name, _PAGE, marker)
            last = len(page) < _PAGE
            end = len(here) if last else bisect.bisect_right(here, page[-1].uuid)
            belongs = {guest.uuid for guest in page}
            self._remove_strangers(ctx, [uuid for uuid in here[start:end] if uuid not in belongs], running)
            changed = [self._now(guest.uuid) for guest in page if guest.settled
                       and (tell or guest.power_state == states.NOSTATE)
                       and running.get(guest.uuid, states.SHUTDOWN) != guest.power_state
                       and not self._runner.busy(guest.uuid)]
            if changed:
                self._guests.power_states(ctx, self.machine.name, changed)
            if last:
                return
            marker, start = page[-1].uuid, end

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
        timer = threading.Timer(delay, function, args)
        timer.daemon = True
        self._timers.add(timer)
        timer.start()

    def reap(self, uuid: str) -> None:
        """Remove a guest unless a row says that it belongs here."""
        ctx = context.admin()
        if self._guests.known(ctx, [uuid]).get(uuid) != self.machine.name:
            self.machine.driver.remove_leftovers(uuid)

    def _settled(self, uuid: str) -> None:
        self._timers = {timer for timer in self._timers if timer.is_alive()}
        if self._stopped or self._runner.busy(uuid):
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

    def _remove_strangers(self, ctx: context.RequestContext, uuids: Sequence[str], running: Collection[str]) -> None:
        """What is here of ``uuids``, which no row of this host names: guests that belong elsewhere or to nobody, and
        files that belong to nobody.

        Files of a server on another host are left alone: the directory may be shared storage. What
        is left of a server without a host is nobody's (a build that failed while this host could not
        clear up).
        """
        for start in range(0, len(uuids), _PAGE):
            page = uuids[start:start + _PAGE]
            known = self._guests.known(ctx, list(page))
            for uuid in page:
                stray = known.get(uuid) != self.machine.name if uuid in running else known.get(uuid) is None
                if stray and not self._runner.busy(uuid):
                    LOG.warning("[instance: %s] What is left of it belongs to no server of this host: removed", uuid)
                    self.machine.driver.remove_leftovers(uuid)

    def _restart_guests(self, instances: list[Instance]) -> None:
        running = {guest.uuid for guest in self.machine.driver.guests() if guest.power_state == states.RUNNING}
        for instance in instances:
            if (instance.vm_state == states.ACTIVE and instance.power_state == states.RUNNING
                    and instance.task_state is None and instance.uuid not in running):
                LOG.info("[instance: %s] Started because the host was restarted", instance.uuid)
                try:
                    self.machine.driver.power_on(instance)
                except exception.NovaException as error:
                    LOG.warning("[instance: %s] was not started: %s", instance.uuid, error)
