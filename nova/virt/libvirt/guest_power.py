"""The power state of guests of libvirt."""

from __future__ import annotations

import logging

from nova.conf import CONF
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.virt.libvirt import agent, power
from nova.virt.libvirt.guests import Guests

LOG = logging.getLogger(__name__)


class Power(guest_driver.Power):
    def __init__(self, guests: Guests) -> None:
        self._guests = guests

    def on(self, instance: Instance, paused: bool = False) -> None:
        self._guests.start(instance, paused=paused)

    def off(self, instance: Instance, timeout: int = 0) -> None:
        if timeout > 0:
            self._guests.shut_down(instance.uuid, timeout)
        self._guests.change(instance.uuid, power.stop)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        if hard:
            self._guests.start(instance, fresh=True)
            return
        seconds = CONF.libvirt.wait_soft_reboot_seconds if timeout is None else timeout
        stopped = seconds > 0 and self._guests.shut_down(instance.uuid, seconds)
        if not stopped:
            LOG.info("[instance: %s] The guest did not shut down in time: continuing with a hard reboot", instance.uuid)
        self._guests.start(instance, fresh=not stopped, must_exist=True)

    def pause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.pause)

    def unpause(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.unpause)

    def suspend(self, instance: Instance) -> None:
        self._guests.change(instance.uuid, power.save)

    def resume(self, instance: Instance) -> None:
        with self._guests.locks.hold(instance.uuid):
            if self._guests.power_state(instance.uuid) == states.POWER_SUSPENDED:
                self._guests.give_keys(instance.uuid, instance.block_devices)
                self._guests.on_domain(instance.uuid, power.start)
                return
        self._guests.start(instance)

    def trigger_crash_dump(self, instance: Instance) -> None:
        self._guests.on_domain(instance.uuid, lambda domain: agent.interrupt(domain, instance.uuid))
