"""The interface of a network back end on a host. Addresses are given out by the conductor.

All verbs are idempotent; a VIF says everything a host needs to know of its network.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from nova.objects.instance import Instance
from nova.objects.network import VIF, FilterRule, Reservation


class HostNetwork(abc.ABC):
    """What nova-compute asks of the network on its own host."""

    # Whether start() wants to see the guests (there may be many).
    needs_guests = True

    @abc.abstractmethod
    def start(self, instances: Sequence[Instance]) -> None:
        """The service started: put the networks of these guests (all that belong here) right again."""

    @abc.abstractmethod
    def plug(self, instance: Instance, rules: Sequence[FilterRule]) -> None:
        """Make the networks, DHCP reservations and filters of all VIFs of a guest ready.

        After this the hypervisor may attach tap devices named ``vif.devname`` to ``vif.bridge``.
        """

    @abc.abstractmethod
    def unplug(self, instance: Instance) -> None:
        """Remove what plug made for this guest; a network without guests on this host goes too."""

    @abc.abstractmethod
    def refresh_rules(self, instance: Instance, rules: Sequence[FilterRule]) -> None:
        """Replace the ingress rules of a guest, atomically."""


class NoNetwork(HostNetwork):
    """For virtual hosts: interfaces exist in the books only."""

    needs_guests = False

    def start(self, instances: Sequence[Instance]) -> None: ...

    def plug(self, instance: Instance, rules: Sequence[FilterRule]) -> None: ...

    def unplug(self, instance: Instance) -> None: ...

    def refresh_rules(self, instance: Instance, rules: Sequence[FilterRule]) -> None: ...


def reservation(vif: VIF, hostname: str) -> Reservation:
    """What the DHCP server of the VIF's network hands out for it."""
    return Reservation(mac=vif.mac, address=vif.address, hostname=hostname)
