"""Errors of scheduling, claims, migrations and compute hosts."""

from nova.exception.base import Conflict, Invalid, NotFound, NovaException, ServiceUnavailable


class NoValidHost(NovaException,
                  template="No valid host was found. {reason}",
                  inside_template="No valid host was found. {detail}"):
    """A request without a suitable host; ``detail`` lists the filters with the number of hosts that they rejected."""


class MaxRetriesExceeded(
        NovaException,
        template="Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for "
                 "instance {instance_uuid}."): ...
class UnsupportedGroupPolicy(Invalid, template="ServerGroup policy is not supported: {reason}"): ...


class ClaimLost(NovaException,
                template="No valid host was found. One that was chosen cannot take the server: {reason}."):
    """Resources of the selected ``node`` that another request has claimed; an alternate is tried next. Users can read
    the message if there is no other host, so the message does not name the node."""


class UnknownOperation(Invalid, code=503, template="This release does not know the operation {name}."):
    """An unknown operation in a request or in the journal of a service of another release; clients get a 503."""


class StepTimeout(NovaException,
                  template="Step {step} did not complete on its host within its deadline.",
                  inside_template="Step {step} did not complete on host {host} within its deadline."): ...
class MigrationNotFound(NotFound, template="Migration {migration_id} could not be found."): ...
class MigrationNotFoundByStatus(MigrationNotFound,
                                template="Migration not found for instance {instance_id} with status {status}."): ...
class MigrationNotFoundForInstance(MigrationNotFound,
                                   template="Migration {migration_id} not found for instance {instance_id}"): ...
class InvalidMigrationState(
        Invalid,
        template="Migration {migration_id} of instance {instance_uuid} is {state}: it cannot be told to {method}."): ...


class StaleReport(Conflict, template="Action {action} is at step {step} attempt {attempt}."):
    """A report of an attempt that is no longer the current one (fencing)."""


class InvalidDiskInfo(Invalid, template="Disk of the server is unusable: {reason}"): ...
class DiskFull(NovaException, template="The host has not enough free disk space: {reason}"): ...
class ConfigDriveFailed(NovaException, template="The config drive could not be created: {reason}"): ...
class GuestNotFound(NotFound, template="Guest {instance_uuid} does not exist on the host."): ...
class GuestNotRunning(Conflict, template="Guest {instance_uuid} is not running."): ...
class HypervisorUnavailable(ServiceUnavailable,
                            template="Connection to the hypervisor is broken.",
                            inside_template="Connection to the hypervisor is broken on host: {reason}"): ...
class DeviceAttachFailed(NovaException, template="The guest did not accept {device}: {reason}"): ...


class DeviceDetachFailed(NovaException, template="The guest did not release {device}: {reason}"):
    """A guest that did not release a device; the detach can be repeated."""


class ResizeError(NovaException, template="Resize error: {reason}"):
    """Disks of a server that cannot be resized for the flavor; nothing was changed."""


class CannotResizeToSameFlavor(Invalid, template="When resizing, instances must change flavor!"): ...
class CannotMigrateToSameHost(Invalid, template="Cannot migrate to the host where the server exists."): ...
class UnableToMigrateToSelf(Invalid,
                            template="Unable to migrate instance ({instance_id}) to current host ({host})."): ...
class ComputeServiceInUse(Invalid, template="Compute service of {host} is still in use."): ...
class HostIsDown(Conflict, template="Compute host {host} is down: its servers cannot be moved, only evacuated."): ...
class EvacuateToSameHost(Invalid, template="The target host can't be the same one."): ...
class MigrationPreCheckError(Invalid, template="Migration pre-check error: {reason}"): ...


class MigrationError(NovaException, template="Migration error: {reason}"):
    """A failed migration; the guest is still on its old host."""


class MigrationCancelled(MigrationError, template="The migration was cancelled."):
    """A migration that was cancelled by request."""


class ComputeServiceUnavailable(Conflict, template="Service is unavailable at this time."):
    """A request that needs the server's host, which is down."""


class ComputeServiceTooOld(
        Conflict,
        template="The host of the server runs a release that does not support {method}. Try again after its upgrade.",
        inside_template="nova-compute on {host} has service version {version}; {method} needs {needed}. Upgrade it "
                        "first."):
    """A host of a release that does not support the request."""


class HostDown(NovaException,
               template="The compute host stopped responding.",
               inside_template="Compute host {host} stopped responding."): ...
