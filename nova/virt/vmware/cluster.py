"""The vCenter cluster that a nova-compute manages: its hosts, datastores, networks and machines."""

import dataclasses
import re
from collections.abc import Iterable
from typing import Any

from pyVmomi import vim

from nova import exception
from nova.conf import CONF
from nova.objects.networks.network import VIF
from nova.virt.vmware.session import VCenter, options

# Owner of Nova's machines in vCenter (managedBy), registered as an extension.
EXTENSION = "org.openstack.compute"
# Types in managedBy, in this order: a guest; a machine with disks that is not (or no longer) a guest; a machine that is
# being created; a guest that was renamed for a move; a clone of a guest that is exported as an image.
GUEST, DISKS, INCOMPLETE, ASIDE, COPY = "instance", "disks", "incomplete", "aside", "copy"
# Key in extraConfig of machines whose instanceUuid is not that of the server. Value: the uuid of the server.
SERVER = "nova.server"

# Properties from which machine_of() creates a Machine.
MACHINE = ("name", "config.managedBy", "config.instanceUuid", "runtime.host", "runtime.powerState")


@dataclasses.dataclass(frozen=True)
class Datastore:
    """A datastore that the cluster can use. Sizes in bytes."""

    ref: Any
    name: str
    capacity: int
    free: int

    def path(self, name: str) -> str:
        return f"[{self.name}] {name}"


@dataclasses.dataclass(frozen=True)
class Machine:
    """A machine of Nova. ``kind``: type in managedBy."""

    ref: Any
    uuid: str
    kind: str
    power: str
    host: Any


def machine_of(ref: Any, facts: dict[str, Any]) -> Machine | None:
    """Return the machine with these properties, or None if it is not a machine of Nova."""
    owner = facts["config.managedBy"]
    if owner is None or owner.extensionKey != EXTENSION:
        return None
    return Machine(ref=ref, uuid=str(facts["config.instanceUuid"]), kind=str(owner.type),
                   power=str(facts["runtime.powerState"]), host=facts["runtime.host"])


class Cluster:
    """The cluster [vmware]cluster_name."""

    def __init__(self, vcenter: VCenter) -> None:
        self.vcenter = vcenter
        self.ref: Any = None
        self.pool: Any = None
        self.datacenter: Any = None
        self.folder: Any = None
        # Path of the datacenter in the inventory, for transfers of files.
        self.datacenter_path = ""

    @property
    def node_name(self) -> str:
        return f"{self.ref._moId}.{self.vcenter.uuid}"

    def start(self) -> None:
        """Find the cluster. Raises InvalidInput if the cluster does not exist or its name is not unique."""
        try:
            re.compile(CONF.vmware.datastore_regex or "")
        except re.error as error:
            raise exception.InvalidInput(reason=f"[vmware]datastore_regex: {error}") from error
        name = CONF.vmware.cluster_name
        listed = self.vcenter.contained(self.vcenter.content.rootFolder, vim.ClusterComputeResource,
                                       ["name", "resourcePool", "parent"])
        matching = [(ref, values) for ref, values in listed.items() if values["name"] == name]
        if len(matching) != 1:
            raise exception.InvalidInput(reason=f"vCenter has {len(matching)} clusters with the name {name} "
                                                "([vmware]cluster_name)")
        (self.ref, values), = matching
        self.pool, parent = values["resourcePool"], values["parent"]
        path: list[str] = []
        while parent is not None:
            facts = self.vcenter.get(parent, "name", "parent")
            if isinstance(parent, vim.Datacenter):
                self.datacenter = parent
                path = []
            path.insert(0, facts["name"])
            parent = facts["parent"]
        # The root folder, which has no parent, is not part of a path.
        self.datacenter_path = "/".join(path[1:])
        self.folder = self.vcenter.get(self.datacenter, "vmFolder")["vmFolder"]
        self._register()

    def _register(self) -> None:
        manager = self.vcenter.content.extensionManager
        if manager.FindExtension(EXTENSION) is None:
            text = vim.Description(label="OpenStack Nova", summary="OpenStack Compute")
            manager.RegisterExtension(vim.Extension(
                key=EXTENSION, version="1.0", description=text, lastHeartbeatTime=vim.ServiceInstance(
                    "ServiceInstance", self.ref._stub).CurrentTime()))

    # --- resources ---------------------------------------------------------------------------------
    def all_hosts(self) -> list[Any]:
        return list(self.vcenter.get(self.ref, "host")["host"] or ())

    def hosts(self) -> dict[Any, dict[str, Any]]:
        """Return the properties of all hosts that can run guests: connected, and not in maintenance mode."""
        listed = self.vcenter.properties(self.all_hosts(), [
            "name", "summary.hardware", "summary.quickStats", "runtime.connectionState", "runtime.inMaintenanceMode",
            "datastore", "config.product"])
        return {ref: facts for ref, facts in listed.items()
                if facts["runtime.connectionState"] == "connected" and not facts["runtime.inMaintenanceMode"]
                and facts["summary.hardware"] is not None}

    def datastores(self, hosts: Iterable[dict[str, Any]]) -> list[Datastore]:
        """Return the datastores that match datastore_regex and that all hosts can access. ``hosts``: properties of the
        hosts, from hosts()."""
        reachable = [set(facts["datastore"] or ()) for facts in hosts]
        shared = set.intersection(*reachable) if reachable else ()
        pattern = re.compile(CONF.vmware.datastore_regex or "")
        return [Datastore(ref=ref, name=facts["summary"].name, capacity=int(facts["summary"].capacity),
                          free=int(facts["summary"].freeSpace))
                for ref, facts in self.vcenter.properties(list(shared), ["summary"]).items()
                if facts["summary"].accessible and pattern.match(facts["summary"].name)
                and facts["summary"].maintenanceMode in (None, "normal")]

    def roomiest(self) -> Datastore:
        """Return the datastore with the most free space. Raises DiskFull if there is none."""
        usable = self.datastores(self.hosts().values())
        if not usable:
            raise exception.DiskFull(reason="the cluster has no usable datastore ([vmware]datastore_regex)")
        return max(usable, key=lambda datastore: datastore.free)

    def network(self, vif: VIF) -> vim.vm.device.VirtualDevice.BackingInfo:
        """Return the connection of an interface to its network in vCenter: the network with the name of its bridge, or
        else the network [vmware]integration_bridge. Raises NetworkSetupError."""
        fallback = CONF.vmware.integration_bridge
        names = [fallback] if vif.vif_type == "ovs" else [vif.details.get("dvs_port_group_name"), vif.bridge, fallback]
        wanted = [str(name) for name in names if name]
        networks: dict[Any, dict[str, Any]] = {}
        for kind in (vim.Network, vim.OpaqueNetwork, vim.dvs.DistributedVirtualPortgroup):
            listed = [ref for ref in self.vcenter.get(self.ref, "network")["network"] or () if type(ref) is kind]
            networks |= self.vcenter.properties(listed, ["name", "summary"])
        for name in wanted:
            for ref, facts in networks.items():
                if facts["name"] == name:
                    return self._backing(ref, facts)
        raise exception.NetworkSetupError(reason=f"the cluster has no network {' or '.join(wanted) or vif.label} for "
                                                 f"interface {vif.id}")

    def _backing(self, ref: Any, facts: dict[str, Any]) -> vim.vm.device.VirtualDevice.BackingInfo:
        card = vim.vm.device.VirtualEthernetCard
        if isinstance(ref, vim.OpaqueNetwork):
            return card.OpaqueNetworkBackingInfo(opaqueNetworkId=facts["summary"].opaqueNetworkId,
                                                 opaqueNetworkType=facts["summary"].opaqueNetworkType)
        if isinstance(ref, vim.dvs.DistributedVirtualPortgroup):
            group = self.vcenter.get(ref, "key", "config.distributedVirtualSwitch")
            switch = self.vcenter.get(group["config.distributedVirtualSwitch"], "uuid")["uuid"]
            return card.DistributedVirtualPortBackingInfo(
                port=vim.dvs.PortConnection(portgroupKey=group["key"], switchUuid=switch))
        return card.NetworkBackingInfo(deviceName=facts["name"], network=ref)

    # --- machines ----------------------------------------------------------------------------------
    def machine(self, identity: str, anywhere: bool = False) -> Machine | None:
        """Return Nova's machine with this instanceUuid in the cluster, or None. ``anywhere``: search all clusters of
        the datacenter."""
        ref = self.vcenter.content.searchIndex.FindByUuid(self.datacenter, identity, True, True)
        listed = self.vcenter.properties([ref] if ref is not None else [], MACHINE)
        for machine in (machine_of(ref, facts) for ref, facts in listed.items()):
            if machine is not None and machine.uuid == identity and (
                    anywhere or machine.host in self.all_hosts()):
                return machine
        return None

    def machines(self) -> list[Machine]:
        """Return all machines of Nova in the cluster."""
        listed = self.vcenter.contained(self.pool, vim.VirtualMachine, MACHINE)
        return [machine for ref, facts in listed.items() if (machine := machine_of(ref, facts)) is not None]

    def servers(self) -> set[str]:
        """Return the uuids of the servers of all machines, also of renamed machines and of clones."""
        listed = self.machines()
        renamed = self.vcenter.properties([machine.ref for machine in listed if machine.kind in (ASIDE, COPY)],
                                         ["config.extraConfig"])
        extra = {ref: options(values["config.extraConfig"]) for ref, values in renamed.items()}
        return {extra.get(machine.ref, {}).get(SERVER, machine.uuid) for machine in listed}

    def reconfigure(self, machine: Any, spec: vim.vm.ConfigSpec) -> None:
        self.vcenter.wait(machine.ReconfigVM_Task(spec))
