"""Choosing hosts, claims on them, moves between them, and what goes wrong on one."""

from nova.exception.base import Conflict, Invalid, NotFound, NovaException, ServiceUnavailable


class NoValidHost(NovaException):
    """``detail``: who refused how many hosts."""

    template = "No valid host was found. {reason}"
    inside_template = "No valid host was found. {detail}"


class MaxRetriesExceeded(NovaException):
    template = (
        "Exceeded maximum number of retries. Exhausted all hosts available for retrying build "
        "failures for instance {instance_uuid}."
    )


class UnsupportedGroupPolicy(Invalid):
    template = "ServerGroup policy is not supported: {reason}"


class ClaimLost(NovaException):
    """What was chosen at ``node`` cannot be had any more; the loser takes an alternate.

    A user whose server finds no other host reads the message, which does not name the node.
    """

    template = "No valid host was found. One that was chosen cannot take the server: {reason}."


class UnknownOperation(Invalid):
    """An operation that a service of another release requested, or wrote to the journal. For clients that is a 503."""

    code = 503
    template = "This release does not know the operation {name}."


class StepTimeout(NovaException):
    template = "Step {step} did not end on its host within its time."
    inside_template = "Step {step} did not end on host {host} within its time."


class MigrationNotFound(NotFound):
    template = "Migration {migration_id} could not be found."


class MigrationNotFoundByStatus(MigrationNotFound):
    template = "Migration not found for instance {instance_id} with status {status}."


class MigrationNotFoundForInstance(MigrationNotFound):
    template = "Migration {migration_id} not found for instance {instance_id}"


class InvalidMigrationState(Invalid):
    template = "Migration {migration_id} of instance {instance_uuid} is {state}: it cannot be told to {method}."


class StaleReport(Conflict):
    """A report of an attempt that is no longer the current one (fencing)."""

    template = "Action {action} is at step {step} attempt {attempt}."


class InvalidDiskInfo(Invalid):
    template = "Disk of the server is unusable: {reason}"


class DiskFull(NovaException):
    template = "The host has not enough free disk space: {reason}"


class ConfigDriveFailed(NovaException):
    template = "The config drive could not be made: {reason}"


class GuestNotFound(NotFound):
    template = "Guest {instance_uuid} does not exist on the host."


class GuestNotRunning(Conflict):
    template = "Guest {instance_uuid} is not running."


class HypervisorUnavailable(ServiceUnavailable):
    template = "Connection to the hypervisor is broken."
    inside_template = "Connection to the hypervisor is broken on host: {reason}"


class DeviceAttachFailed(NovaException):
    template = "The guest did not take {device}: {reason}"


class DeviceDetachFailed(NovaException):
    """The guest keeps the device; it may be asked again."""

    template = "The guest did not release {device}: {reason}"


class ResizeError(NovaException):
    """The server's disks cannot become what the flavor says; nothing was changed."""

    template = "Resize error: {reason}"


class CannotResizeToSameFlavor(Invalid):
    template = "When resizing, instances must change flavor!"


class CannotMigrateToSameHost(Invalid):
    template = "Cannot migrate to the host where the server exists."


class UnableToMigrateToSelf(Invalid):
    template = "Unable to migrate instance ({instance_id}) to current host ({host})."


class ComputeServiceInUse(Invalid):
    template = "Compute service of {host} is still in use."


class HostIsDown(Conflict):
    template = "Compute host {host} is down: its servers cannot be moved, only evacuated."


class EvacuateToSameHost(Invalid):
    template = "The target host can't be the same one."


class MigrationPreCheckError(Invalid):
    template = "Migration pre-check error: {reason}"


class MigrationError(NovaException):
    """The guest did not come over; it is where it was."""

    template = "Migration error: {reason}"


class MigrationCancelled(MigrationError):
    """Somebody wanted that."""

    template = "The migration was cancelled."


class ComputeServiceUnavailable(Conflict):
    """What was asked for needs the server's host, and nobody waits for it."""

    template = "Service is unavailable at this time."


class ComputeServiceTooOld(Conflict):
    """The server's host has not been upgraded yet."""

    template = "The host of the server is of a release that does not know {method} yet. Try again after its upgrade."
    inside_template = ("nova-compute on {host} is of service version {version}; {method} needs {needed}. Upgrade it "
                       "first.")


class HostDown(NovaException):
    template = "The compute host stopped responding."
    inside_template = "Compute host {host} stopped responding."
