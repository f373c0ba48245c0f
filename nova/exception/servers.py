"""Servers, and what is asked of one that cannot do it."""

from nova.exception.base import Conflict, Invalid, NotFound, NovaException


class InstanceNotFound(NotFound):
    template = "Instance {instance_id} could not be found."


class InstanceInvalidState(Conflict):
    template = "Cannot '{method}' instance {instance_uuid} while it is in {attr} {state}"


class InstanceStateUnknown(Conflict):
    """The state that was asked for is null (never launched, or no task)."""

    template = "Instance {instance_uuid} is in an invalid state for '{method}'"


class InstanceIsLocked(Conflict):
    template = "Instance {instance_uuid} is locked"


class InstanceNotReady(Conflict):
    template = "Instance {instance_id} is not ready"


class InstanceIsBusy(Conflict):
    """With something that this cannot wait for."""

    template = "Cannot '{method}' instance {instance_uuid} while something else is done to it"


class InstancePasswordSetFailed(Conflict):
    template = "Failed to set admin password on {instance} because {reason}"


class TooManyWait(Conflict):
    """To be deleted for now a server would have to be one of too many: it can be deleted for good."""

    template = "Too many servers of the project are soft-deleted."


class InstanceNotRescuable(Invalid):
    template = "Instance {instance_id} cannot be rescued: {reason}"


class InstanceActionNotFound(NotFound):
    template = "Action for request_id {request_id} on instance {instance_uuid} not found"


class ConsoleLogUnavailable(NotFound):
    template = "The console log of instance {instance_id} is not available."


class ConsoleTypeInvalid(Invalid):
    template = "Invalid console type {console_type}"


class ConsoleTypeUnavailable(Invalid):
    template = "Unavailable console type {console_type}."


class SocketPortRangeExhausted(Invalid):
    template = "Not able to acquire a free port for the serial console."
    inside_template = "Not able to acquire a free port for the serial console of a guest on {host}."


class ConsoleTokenNotFound(NotFound):
    template = "Console token could not be found."


class MetadataNotFound(NotFound):
    template = "Metadata item was not found"


class InstanceQuiesceFailed(Conflict):
    """Its image asks for file systems at rest in every snapshot."""

    template = "Instance {instance_id} cannot be quiesced: {reason}"


class SnapshotFailed(NovaException):
    template = "The snapshot of instance {instance_id} failed: {reason}"
