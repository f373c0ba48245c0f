"""Classification of libvirt errors."""

import libvirt

from nova import exception

# Error domains and codes that mean, together, that the connection failed and not the request.
_CONNECTION_DOMAINS = frozenset({libvirt.VIR_FROM_REMOTE, libvirt.VIR_FROM_RPC})
_CONNECTION_CODES = frozenset({libvirt.VIR_ERR_SYSTEM_ERROR, libvirt.VIR_ERR_INTERNAL_ERROR, libvirt.VIR_ERR_RPC,
                               libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_INVALID_CONN,
                               libvirt.VIR_ERR_OPERATION_FAILED})
# Error codes for a definition that requests a feature which this hypervisor lacks.
_BAD_REQUEST_CODES = frozenset({libvirt.VIR_ERR_CONFIG_UNSUPPORTED, libvirt.VIR_ERR_XML_ERROR,
                                libvirt.VIR_ERR_XML_DETAIL, libvirt.VIR_ERR_UNKNOWN_HOST})
# Text of the error for missing firmware, which has no error code of its own.
_NO_FIRMWARE = "Unable to find any firmware"

# Text of the error for a container that cannot start, for example because its image lacks the first process.
_NO_CONTAINER = "Failure in libvirt_lxc startup: "

_NO_JOB_CODES = frozenset({libvirt.VIR_ERR_INVALID_ARG, libvirt.VIR_ERR_OPERATION_INVALID})


def is_disconnect(error: libvirt.libvirtError) -> bool:
    """Return True if the connection to libvirtd is lost, so the call may be repeated on a new connection."""
    if error.get_error_code() in (libvirt.VIR_ERR_NO_CONNECT, libvirt.VIR_ERR_INVALID_CONN):
        return True
    return error.get_error_domain() in _CONNECTION_DOMAINS and error.get_error_code() in _CONNECTION_CODES


def is_missing(error: libvirt.libvirtError) -> bool:
    """Return True if the error means that the domain does not exist."""
    return bool(error.get_error_code() == libvirt.VIR_ERR_NO_DOMAIN)


def is_missing_job(error: libvirt.libvirtError) -> bool:
    """Return True if the error means that the disk has no block job to end, or that its guest is not running."""
    return not is_disconnect(error) and error.get_error_code() in _NO_JOB_CODES


def translate(error: libvirt.libvirtError, host: str, uuid: str) -> BaseException:
    """Return the Nova exception for a libvirt error, or the libvirt error itself if Nova has no exception for it."""
    text = str(error.get_error_message() or error)
    if is_disconnect(error):
        return exception.HypervisorUnavailable(reason=host)
    if is_missing(error):
        return exception.GuestNotFound(instance_uuid=uuid)
    if error.get_error_code() in _BAD_REQUEST_CODES or _NO_FIRMWARE in text:
        return exception.InvalidInput(reason=f"the hypervisor cannot run this server: {text}")
    if _NO_CONTAINER in text:
        return exception.InvalidInput(reason=f"the container cannot start: {text.partition(_NO_CONTAINER)[2]}")
    if "No space left on device" in text:
        return exception.DiskFull(reason="the hypervisor found no free disk space")
    unchanged: BaseException = error
    return unchanged
