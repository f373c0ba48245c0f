"""The host's part of the network back end "neutron": interfaces on the integration bridge of Open vSwitch.

The hypervisor creates the ports, with the ids of the guest (vm-id) and of the Neutron port (iface-id) in the database
of Open vSwitch. Neutron's agent or OVN identifies them by the iface-id. Needs root."""

import contextlib
from collections.abc import Sequence

from nova import exception
from nova.network.base import HostNetwork
from nova.network.linux import commands
from nova.objects.networks.network import VIF, RuleSet
from nova.objects.servers.instance import Instance

# ovs-vsctl waits up to 20 seconds until the switch has applied a change.
COMMAND = ("ovs-vsctl", "--timeout=20")
# Prefix of the bridge of a trunk in ML2/OVS. The host creates it, and Neutron's agent connects it with the subports.
_TRUNK = "tbr-"


class NeutronHostNetwork(HostNetwork):
    """The network back end "neutron" on hosts. Neutron has its own packet filters."""

    needs_guests = False

    def start(self, instances: Sequence[Instance]) -> None: ...

    def plug(self, instance: Instance, rules: RuleSet) -> None:
        for vif in instance.network_info:
            self.plug_vif(instance, vif, rules)

    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None:
        """Create the bridge of a trunk. Any other bridge is created by Neutron: check that it exists. Raises
        NetworkSetupError."""
        if vif.bridge.startswith(_TRUNK):
            kind = str(vif.details.get("datapath_type") or "")
            settings = ["--", "set", "Bridge", vif.bridge, f"datapath_type={kind}"] if kind.isalnum() else []
            _vsctl("--may-exist", "add-br", vif.bridge, *settings)
        elif vif.bridge not in _vsctl("list-br").split():
            raise exception.NetworkSetupError(reason=f"the host has no bridge {vif.bridge} in Open vSwitch")

    def unplug(self, instance: Instance) -> None:
        self._remove([*(vif.devname for vif in instance.network_info), *self._devices(instance.uuid)],
                     [vif.bridge for vif in instance.network_info])

    def unplug_vif(self, instance: Instance, vif: VIF) -> None:
        self._remove([vif.devname], [vif.bridge])

    def unplug_guest(self, uuid: str) -> None:
        devices, bridges = self._devices(uuid), []
        for device in devices:
            with contextlib.suppress(exception.NetworkSetupError):  # The hypervisor removed the port meanwhile.
                bridges.append(_vsctl("port-to-br", device).strip())
        self._remove(devices, bridges)

    def guests(self) -> set[str]:
        words = (word.strip('",') for word in _vsctl("--bare", "--columns=external_ids", "find", "Interface").split())
        return {word.removeprefix("vm-id=").strip('"') for word in words if word.startswith("vm-id=")}

    @staticmethod
    def _devices(uuid: str) -> list[str]:
        return _vsctl("--bare", "--columns=name", "find", "Interface", f"external_ids:vm-id={uuid}").split()

    @staticmethod
    def _remove(devices: Sequence[str], bridges: Sequence[str]) -> None:
        """Remove these ports, and the trunk bridges among ``bridges``, in one transaction. Ignores ports that the
        hypervisor has already removed."""
        words = [word for name in dict.fromkeys(devices) for word in ("--", "--if-exists", "del-port", name)]
        words += [word for name in dict.fromkeys(bridges) if name.startswith(_TRUNK)
                  for word in ("--", "--if-exists", "del-br", name)]
        if words:
            _vsctl(*words[1:])


def _vsctl(*words: str) -> str:
    """Run ovs-vsctl and return its output. Raises NetworkSetupError."""
    return commands.run([*COMMAND, *words])
