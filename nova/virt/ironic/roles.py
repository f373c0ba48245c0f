"""The roles of the bare metal driver. Changes that take minutes raise InProgress (:mod:`nova.virt.ironic.deployment`).
"""

import contextlib
import glob
import os
import time
import urllib.parse

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF
from nova.objects.servers import states
from nova.objects.servers.console import SERIAL, ConsoleAddress
from nova.objects.servers.guest import GuestStatus
from nova.objects.servers.instance import Instance
from nova.operations.framework import guest_driver
from nova.operations.framework.guest_driver import BootFiles
from nova.virt.ironic.client import POWER_OFF, POWER_ON, Node
from nova.virt.ironic.deployment import DELETING, OWNER, Deployments

_POWER_STATES = {POWER_ON: states.RUNNING, POWER_OFF: states.SHUTDOWN}
# Seconds between two requests while a console starts.
_POLL = 0.2


def remove_drives(uuid: str = "*") -> None:
    """Remove the local files of config drives (Ironic has copies) of one instance, or of all instances. A directory
    with other files is kept: it belongs to a guest of another driver with the same instances_path."""
    for path in glob.glob(os.path.join(glob.escape(CONF.instances_path), uuid)):
        with contextlib.suppress(OSError):  # not a directory, or removed meanwhile
            names = os.listdir(path)
            if all(name.startswith("disk.config") for name in names):
                files.remove(*(os.path.join(path, name) for name in names))
                os.rmdir(path)


class Role:
    """A role on the nodes of Ironic."""

    def __init__(self, deployments: Deployments) -> None:
        self._deployments, self._ironic = deployments, deployments.ironic


class Guests(Role, guest_driver.Guests):
    """The instances on the nodes that this host manages. ``managed``: the uuids of these nodes."""

    def __init__(self, deployments: Deployments) -> None:
        super().__init__(deployments)
        self.managed: frozenset[str] = frozenset()

    def spawn(self, instance: Instance, files: BootFiles, paused: bool = False) -> None:
        """Deploy the instance. ``paused`` has no effect: Ironic plugs the interfaces while it deploys."""
        self._deployments.deploy(instance, files.config_drive)
        remove_drives(instance.uuid)

    def destroy(self, instance: Instance, keep_disks: bool = False) -> None:
        """Undeploy the node of the instance. ``keep_disks``: only power the node off, since its disks cannot move to
        another node."""
        remove_drives(instance.uuid)
        try:
            node = self._deployments.node_of(instance)
        except exception.GuestNotFound:
            return
        if keep_disks:
            self._deployments.power(node, on=False)
        else:
            self._deployments.undeploy(node, instance.uuid)

    def remove_orphan(self, uuid: str, keep_disks: bool = False) -> None:
        """Start to undeploy the node of an orphaned guest, if this host manages the node. Does not wait: a failed
        removal is repeated when the host compares its guests with the database again."""
        node = self._managed(uuid)
        if node is not None and not keep_disks:
            with contextlib.suppress(guest_driver.InProgress):
                self._deployments.undeploy(node, uuid)

    def stop(self, uuid: str) -> None:
        node = self._managed(uuid)
        if node is not None:
            self._deployments.power(node, on=False)

    def all(self) -> list[GuestStatus]:
        """Return the instances of managed nodes, except those that Ironic is undeploying."""
        return [GuestStatus(uuid=node.instance_uuid, power_state=_power_state(node)) for node in self._ironic.nodes()
                if node.instance_uuid and node.uuid in self.managed and node.provision_state != DELETING]

    def power_state(self, uuid: str) -> int:
        """Return the power state, also of a node that this host does not manage (yet): a running server on a node that
        the host is just taking over must not be reported as stopped."""
        node = self._ironic.node_of(uuid)
        if node is None:
            raise exception.GuestNotFound(instance_uuid=uuid)
        return _power_state(node)

    def _managed(self, uuid: str) -> Node | None:
        """Return the node of an instance, or None unless this host manages the node and Nova deployed it. The caller
        must not change nodes of other hosts or of other clients of Ironic."""
        node = self._ironic.node_of(uuid)
        if node is None or node.uuid not in self.managed:
            return None
        node = self._ironic.node(node.uuid)
        return node if node.instance_uuid == uuid and OWNER in node.instance_info else None


def _power_state(node: Node) -> int:
    return _POWER_STATES.get(node.power_state or "", states.NOSTATE)


class Disks(Role, guest_driver.Disks):
    def prepare(self, instance: Instance, files: BootFiles) -> None:
        """Check the request; Ironic creates the disks when it deploys the node."""
        if instance.volume_backed:
            raise exception.InvalidInput(reason="bare metal servers do not boot from volumes")
        if not instance.image_ref:
            raise exception.InvalidInput(reason="a bare metal server needs an image")

    def replace(self, instance: Instance, files: BootFiles, token: str, keep_ephemerals: bool = False,
                timeout: int = 0) -> None:
        """Rebuild the node. Afterwards the node runs; guests of other drivers are stopped after replace()."""
        if keep_ephemerals:
            raise exception.NotImplementedHere(what="keep the ephemeral disks of bare metal servers")
        try:
            self._deployments.rebuild(instance, files.config_drive, token)
        except exception.GuestNotFound:
            return

    def exist(self, instance: Instance) -> bool:
        """Refuse an evacuation, the only caller of exist(): another host takes over the node with its disks instead."""
        raise exception.NotImplementedHere(what="evacuate bare metal servers (another host takes over their nodes)")


class Power(Role, guest_driver.Power):
    def on(self, instance: Instance, paused: bool = False) -> None:
        self._deployments.power(self._deployments.node_of(instance), on=True)

    def off(self, instance: Instance, timeout: int = 0) -> None:
        self._deployments.power(self._deployments.node_of(instance), on=False, timeout=timeout)

    def reboot(self, instance: Instance, hard: bool, timeout: int | None = None) -> None:
        self._deployments.reboot(instance, hard or timeout == 0, timeout or 0)


class Consoles(Role, guest_driver.Consoles):
    def output(self, instance: Instance, lines: int | None = None) -> bytes:
        raise exception.NotImplementedHere(what="show the console log of bare metal servers")

    def address(self, uuid: str, protocol: str) -> ConsoleAddress | None:
        """Return the address of the serial console, which Ironic starts with socat."""
        if protocol != SERIAL:
            return None
        node = self._ironic.node_of(uuid)
        if node is None:
            raise exception.GuestNotFound(instance_uuid=uuid)
        if node.power_state == POWER_OFF:
            raise exception.GuestNotRunning(instance_uuid=uuid)
        console = self._ironic.console(node.uuid)
        if not console.get("console_enabled"):
            try:
                self._ironic.set_console(node.uuid, True)
            except guest_driver.InProgress as change:
                raise exception.InstanceNotReady(instance_id=uuid) from change
            until = time.monotonic() + CONF.ironic.serial_console_state_timeout
            while not console.get("console_enabled") and time.monotonic() < until:
                time.sleep(_POLL)
                console = self._ironic.console(node.uuid)
        return _address(console)


def _address(console: object) -> ConsoleAddress | None:
    """Return the address from Ironic's description of a console, or None unless it is an enabled socat console."""
    info = console.get("console_info") if isinstance(console, dict) and console.get("console_enabled") else None
    if not isinstance(info, dict) or info.get("type") != "socat":
        return None
    url = urllib.parse.urlsplit(str(info.get("url")))
    try:
        return ConsoleAddress(host=url.hostname, port=url.port) if url.hostname and url.port else None
    except ValueError:
        return None


class Rescue(Role, guest_driver.Rescue):
    def begin(self, instance: Instance, image: Image, files: BootFiles, timeout: int = 0) -> None:
        """Boot the rescue ramdisk that Ironic has for the node. Its password is the new password of the server."""
        if instance.image is None or image.id != instance.image.id:
            raise exception.NotImplementedHere(what="rescue bare metal servers with an image of choice")
        if not instance.admin_pass:
            raise exception.NotImplementedHere(what="rescue bare metal servers without a password")
        self._deployments.rescue(instance, instance.admin_pass)

    def end(self, instance: Instance) -> None:
        """Boot the node from its own disk again. Afterwards the node runs."""
        self._deployments.unrescue(instance)


class Interfaces(Role, guest_driver.Interfaces):
    def attach(self, instance: Instance, vif: VIF) -> None:
        self._deployments.attach_vif(self._deployments.node_of(instance), vif.id)

    def detach(self, instance: Instance, vif: VIF) -> None:
        try:
            node = self._deployments.node_of(instance)
        except exception.GuestNotFound:
            return
        self._deployments.detach_vif(node, vif.id)
