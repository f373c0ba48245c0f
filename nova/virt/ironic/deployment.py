"""Deployments of instances on nodes. A method requests the next change from Ironic and raises InProgress. nova-compute
calls the method again until it returns; then the node has the requested state. The progress is read from the node's
state in Ironic. So a new process continues the deployment of a previous process."""

import base64
import gzip
import json
import logging
from collections.abc import Callable, Collection
from typing import Any

from nova import exception
from nova.objects.servers.instance import Instance
from nova.operations.framework.guest_driver import step_notes
from nova.virt.ironic import inventory
from nova.virt.ironic.client import POWER_OFF, POWER_ON, Ironic, Node, in_progress

LOG = logging.getLogger(__name__)

_ACTIVE, _RESCUED, DELETING = "active", "rescue", "deleting"
# States in which Ironic works on a node and accepts no other transition.
_BUSY = frozenset({"deploying", "wait call-back", "deploy hold", "rebuild", "rescuing", "rescue wait", "unrescuing",
                   "servicing", "service wait"})
# Busy states that a deletion may interrupt.
_INTERRUPTIBLE = frozenset({"wait call-back", "deploy hold", "rescue wait", "service wait"})
# States of a node whose instance was not deployed yet, or is undeployed already.
_WITHOUT_DEPLOYMENT = frozenset({"available", "manageable", "enroll", "verifying", "inspecting", "inspect wait",
                                 "inspect failed", "cleaning", "clean wait", "clean hold", "clean failed", None})
# Key in instance_info of each node that Nova deployed: the name of the host that deployed the node.
OWNER = "nova_host_id"
# Keys in instance_info: the token of the newest rebuild, and provision_updated_at when this rebuild was requested.
_REBUILD, _BEFORE = "nova_rebuild", "nova_rebuild_after"
# _TRIES: maximum number of requests for a change in one step; after the last one the step fails with Ironic's error.
# _DONE: value in the notes of a step for a change that the node has reached.
_TRIES, _DONE = 3, -1


class Deployments:
    """The changes of nodes. The notes of a step contain the number of requests for each change, or _DONE if the node
    has reached the change. Without _DONE, a step that is called again for its second change would repeat the first one,
    which could revert the second."""

    def __init__(self, ironic: Ironic) -> None:
        self.ironic = ironic

    def node_of(self, instance: Instance) -> Node:
        """Return the node of an instance. Raises GuestNotFound if the instance has no node, or the node does not have
        this instance."""
        try:
            node = self.ironic.node(instance.node) if instance.node else None
        except exception.NotFound:
            node = None
        if node is None or node.instance_uuid != instance.uuid:
            raise exception.GuestNotFound(instance_uuid=instance.uuid)
        return node

    # --- deployment ------------------------------------------------------------------------------------
    def deploy(self, instance: Instance, drive: str | None) -> None:
        """Deploy the instance on its node and power the node on. ``drive``: path of the config drive. Raises
        NodeNotReady, BareMetalError."""
        node = self._take(instance)
        state = node.provision_state
        if state == inventory.AVAILABLE:
            invalid = self.ironic.invalid_interfaces(node.uuid)
            if invalid:
                raise exception.NodeNotReady(node=node.uuid, reason="; ".join(
                    f"{name}: {why}" for name, why in sorted(invalid.items())))
            for vif in instance.network_info:
                self.attach_vif(node, vif.id)
            self.ironic.provision(node.uuid, _ACTIVE, **_config_drive(drive))
            LOG.info("[instance: %s] Deploying node %s", instance.uuid, node.uuid)
            raise in_progress("the node is being deployed")
        if state in _BUSY:
            raise in_progress(f"the node is in state {state}")
        if state not in (_ACTIVE, _RESCUED):
            raise exception.BareMetalError(reason=f"the deployment ended in state {state}: {node.last_error}")
        self.power(node, on=True)

    def _take(self, instance: Instance) -> Node:
        """Associate the instance with its node and return the node. Undeploys the node of an earlier attempt first."""
        try:
            node = self.ironic.node(instance.node or "")
        except exception.NotFound as error:
            raise exception.NodeNotReady(node=instance.node, reason="the node does not exist in Ironic") from error
        if node.instance_uuid == instance.uuid:
            return node
        other = self.ironic.node_of(instance.uuid)
        if other is not None:
            self.undeploy(other, instance.uuid)
        if why := inventory.unusable(node):
            raise exception.NodeNotReady(node=node.uuid, reason=why)
        try:
            return self.ironic.update(node.uuid, {"/instance_uuid": instance.uuid, **_instance_info(instance, node)})
        except exception.Conflict as error:
            raise exception.NodeNotReady(node=node.uuid, reason="another instance uses the node") from error

    def undeploy(self, node: Node, uuid: str) -> None:
        """Remove the instance from a node; return when Ironic has accepted the node for cleaning. Succeeds if the node
        does not have the instance."""
        state = node.provision_state
        if node.instance_uuid != uuid:
            return
        if state == DELETING or (state in _BUSY and state not in _INTERRUPTIBLE):
            raise in_progress(f"the node is in state {state}")
        for vif_id in sorted(self.ironic.vifs(node.uuid)):
            self.detach_vif(node, vif_id)
        if state in _WITHOUT_DEPLOYMENT:
            self.ironic.update(node.uuid, {"/instance_info": {}, "/instance_uuid": None})
            return
        LOG.info("[instance: %s] Undeploying node %s", uuid, node.uuid)
        self._request("deleted", node, lambda: self.ironic.provision(node.uuid, "deleted"))

    def rebuild(self, instance: Instance, drive: str | None, token: str) -> None:
        """Deploy the image of the instance on its node again. ``token``: see Disks.replace."""
        node = self.node_of(instance)
        if node.provision_state in _BUSY:
            raise in_progress(f"the node is in state {node.provision_state}")
        now = node.provision_updated_at or ""
        if node.instance_info.get(_REBUILD) != token:
            node = self.ironic.update(node.uuid, _instance_info(instance, node) | {
                f"/instance_info/{_REBUILD}": token, f"/instance_info/{_BEFORE}": now})
        if node.instance_info.get(_BEFORE) == now:
            self.ironic.provision(node.uuid, "rebuild", **_config_drive(drive))
            raise in_progress("the node is being rebuilt")
        if node.provision_state != _ACTIVE:
            raise exception.BareMetalError(
                reason=f"the rebuild ended in state {node.provision_state}: {node.last_error}")

    def rescue(self, instance: Instance, password: str) -> None:
        self._reach(instance, _RESCUED, "rescue", rescue_password=password)

    def unrescue(self, instance: Instance) -> None:
        node = self.node_of(instance)
        if node.provision_state in (_RESCUED, "rescue failed", "unrescue failed", *_BUSY):
            self._reach(instance, _ACTIVE, "unrescue")

    def _reach(self, instance: Instance, wanted: str, target: str, **more: Any) -> None:
        """Request the transition ``target`` once. Raise BareMetalError if the node then is not in state ``wanted``."""
        node = self.node_of(instance)
        if node.provision_state == wanted:
            return
        if node.provision_state in _BUSY:
            raise in_progress(f"the node is in state {node.provision_state}")
        self._request(target, node, lambda: self.ironic.provision(node.uuid, target, **more), tries=1)

    # --- power -------------------------------------------------------------------------------------------
    def power(self, node: Node, on: bool, timeout: int = 0) -> None:
        """Power a node on or off. ``timeout``: seconds for a soft power off, requested before a hard one (0: none)."""
        wanted, notes = POWER_ON if on else POWER_OFF, step_notes()
        if notes.get(wanted) == _DONE:
            return
        if node.target_power_state is not None:
            raise in_progress(f"the power state changes to {node.target_power_state}")
        if node.power_state == wanted:
            notes[wanted] = _DONE
            return
        soft = timeout > 0 and not on and wanted not in notes
        self._request(wanted, node, lambda: self._softly(node, "soft power off" if soft else wanted, wanted, timeout))

    def reboot(self, instance: Instance, hard: bool, timeout: int) -> None:
        """Reboot the node. A hard reboot follows a failed soft reboot. A node that is off is powered on."""
        node, change, notes = self.node_of(instance), "reboot", step_notes()
        requested = notes.get(change, 0)
        if requested == _DONE:
            return
        if node.target_power_state is not None:
            raise in_progress(f"the power state changes to {node.target_power_state}")
        if node.power_state == POWER_OFF:
            self.power(node, on=True)
        if node.power_state == POWER_ON and (POWER_ON in notes or (requested and not node.last_error)):
            notes[change] = _DONE
            return
        target = "rebooting" if hard or requested else "soft rebooting"
        self._request(change, node, lambda: self._softly(node, target, "rebooting", timeout))

    def _softly(self, node: Node, target: str, otherwise: str, timeout: int) -> None:
        """Request the power change ``target``, or ``otherwise`` if the node does not support the soft ``target``."""
        try:
            self.ironic.set_power(node.uuid, target, timeout if target.startswith("soft") else 0)
        except exception.InvalidInput:
            if target == otherwise:
                raise
            self.ironic.set_power(node.uuid, otherwise)

    # --- interfaces --------------------------------------------------------------------------------------
    def attach_vif(self, node: Node, vif_id: str) -> None:
        """Attach a virtual interface to a node. Succeeds if it is attached."""
        if vif_id in self.ironic.vifs(node.uuid):
            return
        try:
            self.ironic.attach_vif(node.uuid, vif_id)
        except exception.Conflict as error:
            if vif_id not in self.ironic.vifs(node.uuid):
                raise exception.DeviceAttachFailed(device=f"interface {vif_id}", reason=str(error)) from error
        except exception.InvalidInput as error:
            raise exception.DeviceAttachFailed(device=f"interface {vif_id}", reason=str(error)) from error

    def detach_vif(self, node: Node, vif_id: str) -> None:
        """Detach a virtual interface. Succeeds if it is not attached."""
        try:
            self.ironic.detach_vif(node.uuid, vif_id)
        except (exception.NotFound, exception.InvalidInput) as error:
            if vif_id in self.ironic.vifs(node.uuid):
                raise exception.DeviceDetachFailed(device=f"interface {vif_id}", reason=str(error)) from error

    # --- requests ----------------------------------------------------------------------------------------
    @staticmethod
    def _request(change: str, node: Node, call: Callable[[], None], tries: int = _TRIES) -> None:
        """Request a change that the node has not reached, and raise InProgress. Raises BareMetalError if this step has
        requested the change ``tries`` times already."""
        notes = step_notes()
        requested = notes.get(change, 0)
        if requested >= tries:
            raise exception.BareMetalError(reason=f"{change} of node {node.uuid}: {node.last_error or 'no effect'}")
        call()
        notes[change] = requested + 1
        raise in_progress(f"{change} was requested")


def _config_drive(path: str | None) -> dict[str, str]:
    """Return the argument configdrive of a transition with the content of this file; empty if there is no file."""
    if path is None:
        return {}
    with open(path, "rb") as file:
        return {"configdrive": base64.b64encode(gzip.compress(file.read(), mtime=0)).decode()}


def _instance_info(instance: Instance, node: Node) -> dict[str, Any]:
    """Return the fields of instance_info from which Ironic deploys the instance, by path."""
    flavor, image = instance.flavor, instance.image.properties if instance.image else {}
    capabilities = {name.removeprefix("capabilities:"): value for name, value in flavor.extra_specs.items()
                    if name.startswith("capabilities:")}
    values = {
        "image_source": instance.image_ref,
        # If image_type is missing, Ironic 39 queries the image service; without a response of Glance a rebuild fails.
        "image_type": image.get("img_type") or ("partition" if instance.kernel_id else "whole-disk"),
        "root_gb": str(flavor.root_gb), "swap_mb": str(flavor.swap), "ephemeral_gb": str(flavor.ephemeral_gb),
        "local_gb": str(node.properties.get("local_gb", 0)), "vcpus": str(flavor.vcpus),
        "memory_mb": str(flavor.memory_mb), "flavor_name": flavor.name, "display_name": instance.display_name,
        OWNER: instance.host or "", "project_id": instance.project_id, "user_id": instance.user_id,
        "capabilities": json.dumps(capabilities), "traits": _required_traits(flavor.extra_specs, image),
        "fixed_ips": [address for vif in instance.network_info for address in vif.addresses()]}
    return {f"/instance_info/{name}": value for name, value in values.items()}


def _required_traits(*sources: Any) -> Collection[str]:
    return sorted({name.removeprefix("trait:") for source in sources for name, value in source.items()
                   if name.startswith("trait:") and value == "required"})
