"""The bare metal driver: instances on the nodes of an Ironic, which several nova-computes share.

A conductor assigns each node to one of the hosts (:mod:`nova.db.hosts.shared_nodes`). Ironic deploys nodes, switches
their power and plugs their interfaces. The driver stores nothing on its host."""

from collections.abc import Collection
from typing import Any

from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode
from nova.objects.hosts.service import BARE_METAL
from nova.virt.driver import Driver, EventHandler
from nova.virt.ironic import inventory
from nova.virt.ironic.client import Ironic, Node
from nova.virt.ironic.deployment import Deployments
from nova.virt.ironic.roles import Consoles, Disks, Guests, Interfaces, Power, Rescue, remove_drives


class IronicDriver(Driver):
    """The driver for the nodes of an Ironic. It has no locks: Ironic locks a node during each change."""

    capabilities = frozenset({"attach_interface"})
    needs_images = False
    plugs_interfaces = False

    def __init__(self, host: str) -> None:
        self._ironic = Ironic()
        deployments = Deployments(self._ironic)
        self._guests = Guests(deployments)
        super().__init__(host=host, guests=self._guests, disks=Disks(deployments), power=Power(deployments),
                         consoles=Consoles(deployments), rescue=Rescue(deployments),
                         interfaces=Interfaces(deployments))
        self._nodes: list[Node] = []

    def start(self, on_event: EventHandler) -> None:
        """Remove config drives left by an interrupted deployment. Ironic reports changes of power states to the API."""
        remove_drives()

    def boot_id(self) -> str:
        return ""  # the nodes do not boot with this host

    def connector(self) -> dict[str, Any]:
        return {BARE_METAL: f"ironic/{CONF.ironic.conductor_group or ''}/{CONF.ironic.shard or ''}"}

    def shared_nodes(self) -> list[str]:
        self._nodes = self._ironic.nodes()
        return [node.uuid for node in self._nodes]

    def manage(self, nodes: Collection[str]) -> None:
        self._guests.managed = frozenset(nodes)

    def nodes(self) -> list[ComputeNode]:
        return [inventory.compute_node(node, self.host) for node in self._nodes if node.uuid in self._guests.managed]
