"""Requests to the QEMU guest agent, and guest actions that bypass the agent."""

import libvirt

from nova import exception
from nova.objects.servers.instance import Instance
from nova.virt.libvirt import errors

# Timeout in seconds of an answer of the guest agent: by default libvirt waits for ever, and agents are programs of
# tenants.
TIMEOUT = 10
# Timeout in seconds of freezing file systems.
REST = 30


def set_password(domain: libvirt.virDomain, instance: Instance, password: str) -> None:
    """Set a password in the guest. Raises InstancePasswordSetFailed: no agent, a silent one, or one that refuses."""
    properties = instance.image.properties if instance.image else {}
    default = "Administrator" if properties.get("os_type") == "windows" else "root"
    try:
        domain.agentSetResponseTimeout(TIMEOUT)
        domain.setUserPassword(properties.get("os_admin_user") or default, password)
    except libvirt.libvirtError as error:
        if errors.is_disconnect(error) or errors.is_missing(error):
            raise
        raise exception.InstancePasswordSetFailed(
            instance=instance.uuid, reason=str(error.get_error_message() or error)) from error


def freeze(domain: libvirt.virDomain) -> None:
    """Freeze the guest's file systems until thaw(). Raises libvirtError."""
    domain.agentSetResponseTimeout(REST)
    domain.fsFreeze()


def thaw(domain: libvirt.virDomain) -> None:
    """Thaw the guest's file systems if they are frozen. Raises libvirtError."""
    domain.agentSetResponseTimeout(REST)
    domain.fsThaw()


def interrupt(domain: libvirt.virDomain, uuid: str) -> None:
    """Inject a non-maskable interrupt. Raises GuestNotRunning, NotImplementedHere."""
    try:
        domain.injectNMI()
    except libvirt.libvirtError as error:
        if error.get_error_code() == libvirt.VIR_ERR_OPERATION_INVALID:
            raise exception.GuestNotRunning(instance_uuid=uuid) from error
        if error.get_error_code() in (libvirt.VIR_ERR_NO_SUPPORT, libvirt.VIR_ERR_OPERATION_UNSUPPORTED):
            raise exception.NotImplementedHere(what="trigger crash dumps") from error
        raise
