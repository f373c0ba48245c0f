"""Errors of servers and of requests that their state does not allow."""

from nova.exception.base import Conflict, Invalid, NotFound, NovaException


class InstanceNotFound(NotFound, template="Instance {instance_id} could not be found."): ...
class InstanceInvalidState(Conflict,
                           template="Cannot '{method}' instance {instance_uuid} while it is in {attr} {state}"): ...


class InstanceStateUnknown(Conflict, template="Instance {instance_uuid} is in an invalid state for '{method}'"):
    """A server without a state (never launched, or no task)."""


class InstanceIsLocked(Conflict, template="Instance {instance_uuid} is locked"): ...
class InstanceNotReady(Conflict, template="Instance {instance_id} is not ready"): ...


class InstanceIsBusy(Conflict,
                     template="Cannot '{method}' instance {instance_uuid} while something else is done to it"):
    """A server with another running operation."""


class InstancePasswordSetFailed(Conflict, template="Failed to set admin password on {instance} because {reason}"): ...


class TooManyWait(Conflict, template="Too many servers of the project are soft-deleted."):
    """Too many soft-deleted servers of a project; a server can still be deleted permanently."""


class InstanceNotRescuable(Invalid, template="Instance {instance_id} cannot be rescued: {reason}"): ...
class InstanceActionNotFound(NotFound,
                             template="Action for request_id {request_id} on instance {instance_uuid} not found"): ...
class ConsoleLogUnavailable(NotFound, template="The console log of instance {instance_id} is not available."): ...
class ConsoleTypeInvalid(Invalid, template="Invalid console type {console_type}"): ...
class ConsoleTypeUnavailable(Invalid, template="Unavailable console type {console_type}."): ...
class SocketPortRangeExhausted(
        Invalid, template="Not able to acquire a free port for the serial console.",
        inside_template="Not able to acquire a free port for the serial console of a guest on {host}."): ...
class ConsoleTokenNotFound(NotFound, template="Console token could not be found."): ...
class MetadataNotFound(NotFound, template="Metadata item was not found"): ...


class InstanceQuiesceFailed(Conflict, template="Instance {instance_id} cannot be quiesced: {reason}"):
    """A guest whose image requires frozen file systems in snapshots."""


class SnapshotFailed(NovaException, template="The snapshot of instance {instance_id} failed: {reason}"): ...
