"""The interface of a network back end on a host. Addresses are given out by the conductor.

All verbs are idempotent; a VIF says everything a host needs to know of its network.
"""

from __future__ import annotations

import abc
from collections.abc import Sequence

from nova.objects.floating_ip_dns import ServedDomain
from nova.objects.instance import Instance
from nova.objects.network import VIF, GroupFilter, Peers, RuleSet
from nova.rpcapi.network_hosts import NetworkHosts


class HostNetwork(abc.ABC):
    """What nova-compute asks of the network on its own host."""

    # Whether start() wants to see the guests (there may be many).
    needs_guests = True

    def connect(self, host: str, desk: NetworkHosts) -> None:
        """Before anything else: the name of this host, and whom it asks about other hosts."""

    @abc.abstractmethod
    def start(self, instances: Sequence[Instance]) -> None:
        """The service started: put the networks of these guests (all that belong here) right again.

        Guests that are not among them keep what they have until unplug_guest.
        """

    @abc.abstractmethod
    def plug(self, instance: Instance, rules: RuleSet) -> None:
        """Make the networks, DHCP reservations and filters of all VIFs of a guest ready.

        After this the hypervisor may attach tap devices named ``vif.devname`` to ``vif.bridge``.
        """

    @abc.abstractmethod
    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None:
        """The same for one VIF more."""

    @abc.abstractmethod
    def unplug(self, instance: Instance) -> None:
        """Remove what plug made for this guest; a network without guests on this host goes too."""

    @abc.abstractmethod
    def unplug_vif(self, instance: Instance, vif: VIF) -> None:
        """Remove what was made for this VIF; the guest's others stay."""

    @abc.abstractmethod
    def unplug_guest(self, uuid: str) -> None:
        """Remove all that was ever made here for a guest of which only the uuid is known."""

    @abc.abstractmethod
    def guests(self) -> set[str]:
        """The guests that anything was made for."""

    @abc.abstractmethod
    def refresh_rules(self, uuid: str, rules: RuleSet) -> None:
        """Replace the ingress rules of a guest, atomically, unless it has or was told newer ones."""

    def refresh_groups(self, filters: Sequence[GroupFilter]) -> None:
        """These security groups have other rules or members, unless newer ones are known."""

    def refresh_peers(self, peers: Peers) -> None:
        """Other hosts have a network than before, unless newer ones are known."""

    def refresh_names(self, domains: Sequence[ServedDomain]) -> None:
        """Names that guests may ask for are other ones than before, unless newer ones are known."""

    def stop(self) -> None:
        """The service ends. Networks and guests go on."""


class NoNetwork(HostNetwork):
    """For virtual hosts: interfaces exist in the books only."""

    needs_guests = False

    def start(self, instances: Sequence[Instance]) -> None: ...

    def plug(self, instance: Instance, rules: RuleSet) -> None: ...

    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None: ...

    def unplug(self, instance: Instance) -> None: ...

    def unplug_vif(self, instance: Instance, vif: VIF) -> None: ...

    def unplug_guest(self, uuid: str) -> None: ...

    def guests(self) -> set[str]:
        return set()

    def refresh_rules(self, uuid: str, rules: RuleSet) -> None: ...
