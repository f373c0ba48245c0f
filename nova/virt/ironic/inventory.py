"""The resources of Ironic's nodes. A node offers one unit of its resource class, named CUSTOM_ plus Ironic's name."""

import re

from nova.conf import CONF
from nova.objects.hosts.node import ComputeNode, Inventory, Provider
from nova.virt.ironic.client import Node

AVAILABLE = "available"
_TYPE, _VERSION = "ironic", 1


def unusable(node: Node) -> str:
    """Return the reason why a node cannot take another instance, or ""."""
    if node.instance_uuid is not None:
        return "it has an instance"
    if node.maintenance or node.retired:
        return "it is in maintenance" if node.maintenance else "it is retired"
    if node.power_state == "error":
        return "its power state is unknown"
    if node.provision_state != AVAILABLE:
        return f"its provision state is {node.provision_state}"
    return ""


def resource_class(name: str) -> str:
    """Return Nova's name of a resource class of Ironic."""
    return "CUSTOM_" + re.sub(r"[^A-Z0-9_]", "_", name.upper())


def compute_node(node: Node, host: str) -> ComputeNode:
    """Return the report of a node. The unit of a node that is in use or unusable is reserved. A node without a resource
    class offers no resources."""
    inventories = {resource_class(node.resource_class): Inventory(
        total=1, reserved=1 if unusable(node) else 0, max_unit=1)} if node.resource_class else {}
    arch = node.properties.get("cpu_arch")
    return ComputeNode(
        uuid=node.uuid, host=host, hypervisor_hostname=node.uuid, hypervisor_type=_TYPE, hypervisor_version=_VERSION,
        host_ip=CONF.my_ip, supported_instances=[(str(arch), "baremetal", "hvm")] if arch else [],
        provider=Provider(uuid=node.uuid, name=node.uuid, inventories=inventories,
                          traits=sorted({*node.traits, "COMPUTE_NODE", "OWNER_NOVA"})))
