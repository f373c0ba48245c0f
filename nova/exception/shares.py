"""Errors of shares."""

from nova.exception.base import Conflict, Invalid, NotFound, NovaException, ServiceUnavailable


class ShareNotFound(NotFound):
    template = "Share {share_id} could not be found."


class ShareNotAttached(NotFound):
    template = "Instance {instance_uuid} does not have share {share_id}."


class ShareAlreadyAttached(Conflict):
    template = "Share {share_id} is already associated with instance {instance_uuid}."


class ShareTagInUse(Conflict):
    template = "Share tag {tag} is already used by another share of instance {instance_uuid}."


class ShareStatusIncorrect(Conflict):
    template = "Share {share_id} is in status {status}, but has to be {expected}."


class ShareInUse(Conflict):
    template = "Share {share_id} is in use by instance {instance_uuid}."


class SharesUnsupported(Conflict):
    template = "The host of instance {instance_uuid} cannot give its guest shares ({trait})."


class ForbiddenWithShares(Conflict):
    template = "Cannot '{method}' instance {instance_uuid} while it has shares."


class ShareProtocolUnsupported(Invalid):
    template = "Share {share_id} has the protocol {protocol}, which is not supported."


class ShareAccessGrantError(NovaException):
    template = "Share access could not be granted to share {share_id}: {reason}"


class ShareAccessRemovalError(NovaException):
    template = "Share access could not be removed from share {share_id}: {reason}"


class ShareUnusable(NovaException):
    template = "Share {share_id} cannot be used: {reason}"


class ShareServiceUnavailable(ServiceUnavailable):
    """A share service that does not answer; the request may have been executed."""

    template = "The share service is not available: {reason}."
