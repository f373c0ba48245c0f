"""Errors of vCenter."""

from http import client

from pyVmomi import vim, vmodl

from nova import exception

# Faults of a host that may respond again later.
_AWAY = (vim.fault.HostConnectFault, vmodl.fault.HostNotConnected, vmodl.fault.HostNotReachable,
         vmodl.fault.HostCommunication, vim.fault.Timedout)
_NO_SPACE = (vim.fault.NoDiskSpace, vim.fault.InsufficientStorageSpace)
BROKEN = (OSError, client.HTTPException)  # errors of a connection


class VCenterFault(exception.NovaException, template="vCenter refused the request: {reason}"):
    """A request that vCenter refused. ``fault``: the fault of vCenter's API; None after the error was sent by RPC."""

    fault: vmodl.MethodFault | None = None

    def is_a(self, *kinds: type) -> bool:
        return isinstance(self.fault, kinds)


def translate(fault: vmodl.MethodFault) -> exception.NovaException:
    """Return the Nova exception for a fault."""
    kind = type(fault).__name__.rpartition(".")[2]
    reason = f"{kind}: {getattr(fault, 'msg', '') or 'no further message'}"
    if isinstance(fault, _NO_SPACE):
        return exception.DiskFull(reason=f"the datastore has no space left ({kind})")
    if isinstance(fault, _AWAY):
        return exception.HypervisorUnavailable(reason=reason)
    detail = next((f"{name} {value}" for name in ("invalidProperty", "property", "file", "deviceIndex")
                   if (value := getattr(fault, name, None)) not in (None, "")), "")
    error = VCenterFault(reason=f"{reason} ({detail})" if detail else reason)
    error.fault = fault
    return error


def is_missing(error: exception.NovaException) -> bool:
    """Return True if the error means that a managed object does not exist."""
    return isinstance(error, VCenterFault) and error.is_a(vmodl.fault.ManagedObjectNotFound)


def is_power_state(error: exception.NovaException) -> bool:
    """Return True if the error means that a guest is not in the power state that the request needs."""
    return isinstance(error, VCenterFault) and error.is_a(vim.fault.InvalidPowerState)
