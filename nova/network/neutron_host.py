"""A host's half of Neutron: guests are plugged into the integration bridge of Open vSwitch.

Neutron's agent or OVN finds them there by the id of their port.

The hypervisor makes the ports, with the guest's id (vm-id) and the port's (iface-id) in the database of Open vSwitch,
which is all that is to be known here. Needs root.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from nova import exception
from nova.network import commands
from nova.network.base import HostNetwork
from nova.objects.instance import Instance
from nova.objects.network import VIF, RuleSet

LOG = logging.getLogger(__name__)

# A change has 20 seconds to be seen by the switch.
COMMAND = ("ovs-vsctl", "--timeout=20")


class NeutronHostNetwork(HostNetwork):
    """``[network]driver`` neutron, on hosts. Packet filters are Neutron's own."""

    needs_guests = False

    def start(self, instances: Sequence[Instance]) -> None: ...

    def plug(self, instance: Instance, rules: RuleSet) -> None:
        for vif in instance.network_info:
            self.plug_vif(instance, vif, rules)

    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None:
        """The bridge is Neutron's: it has to be there."""
        if vif.bridge not in _vsctl("list-br").split():
            raise exception.NetworkSetupError(reason=f"the host has no bridge {vif.bridge} in Open vSwitch")

    def unplug(self, instance: Instance) -> None:
        self._remove([*(vif.devname for vif in instance.network_info), *self._devices(instance.uuid)])

    def unplug_vif(self, instance: Instance, vif: VIF) -> None:
        self._remove([vif.devname])

    def unplug_guest(self, uuid: str) -> None:
        self._remove(self._devices(uuid))

    def guests(self) -> set[str]:
        listed = _vsctl("--bare", "--columns=external_ids", "find", "Interface")
        words = (word.strip('",') for word in listed.split())
        return {word.removeprefix("vm-id=").strip('"') for word in words if word.startswith("vm-id=")}

    def refresh_rules(self, uuid: str, rules: RuleSet) -> None: ...

    @staticmethod
    def _devices(uuid: str) -> list[str]:
        return _vsctl("--bare", "--columns=name", "find", "Interface", f"external_ids:vm-id={uuid}").split()

    @staticmethod
    def _remove(devices: Sequence[str]) -> None:
        """One transaction for all; what the hypervisor took away already is fine."""
        words = [word for name in dict.fromkeys(devices) for word in ("--", "--if-exists", "del-port", name)]
        if words:
            _vsctl(*words[1:])


def _vsctl(*words: str) -> str:
    """Raises NetworkSetupError."""
    return commands.run([*COMMAND, *words])
