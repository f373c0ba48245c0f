"""Errors of volumes and attachments."""

from nova.exception.base import Conflict, Forbidden, Invalid, NotFound, NovaException, ServiceUnavailable


class VolumeNotFound(NotFound):
    template = "Volume {volume_id} could not be found."


class VolumeTypeNotFound(NotFound):
    template = "Volume type {volume_type} could not be found."


class SnapshotNotFound(NotFound):
    template = "Snapshot {snapshot_id} could not be found."


class InvalidVolume(Invalid):
    template = "Invalid volume: {reason}"


class MultiattachTooOld(Invalid):
    template = "Multiattach volumes are only supported starting with compute API version 2.60."


class MultiattachShelved(Invalid):
    template = "A multi-attach volume cannot be attached to a shelved server without a host."


class MultiattachUnsupported(Conflict):
    template = "Volume {volume_id} has 'multiattach' set, which is not supported for this instance."


class VolumeShared(Conflict):
    template = "Volume {volume_id} cannot be reimaged: it is also attached to other instances: {servers}"


class MultiattachSwapUnsupported(Invalid):
    template = "Swapping multi-attach volumes with more than one read/write attachment is not supported."


class VolumeNotMigrated(Conflict):
    template = "Volume {old} cannot be swapped for {new}: it is not being migrated."


class VolumeSwapFailed(NovaException):
    template = "Volume {volume_id} was not swapped: {reason}"


class VolumeSnapshotFailed(NovaException):
    template = "The files of volume {volume_id} were not changed: {reason}"


class VolumeExtendFailed(NovaException):
    template = "The guest's disk of volume {volume_id} was not extended: {reason}"


class VolumeNotAttached(NotFound):
    template = "Instance {instance_uuid} is not attached to volume {volume_id}"


class DevicePathInUse(Conflict):
    template = "The device {path} of instance {instance_uuid} is in use."


class TooManyDiskDevices(Forbidden):
    template = "A server may have at most {maximum} disk devices."


class VolumeServiceUnavailable(ServiceUnavailable):
    """A volume service that does not answer; the request may have been executed."""

    template = "The volume service is not available: {reason}."


class KeyManagerUnavailable(ServiceUnavailable):
    template = "The key manager is not available."


class VolumeUnusable(NovaException):
    template = "Volume {volume_id} cannot be used on its host: {reason}"
