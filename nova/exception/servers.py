"""Errors of servers, and of requests that their state does not allow; of scheduling, claims, migrations and hosts."""

from nova.exception.base import Conflict, Invalid, NotFound, NovaException, ServiceUnavailable


class InstanceNotFound(NotFound, template="Instance {instance_id} could not be found."): ...
class InstanceInvalidState(Conflict,
                           template="Cannot '{method}' instance {instance_uuid} while it is in {attr} {state}"): ...


class InstanceStateUnknown(Conflict, template="Instance {instance_uuid} is in an invalid state for '{method}'"):
    """A server without a state (never launched, or no task)."""


class ForbiddenWithTpm(Invalid, template="Cannot '{method}' instance {instance_uuid}, which has a virtual TPM."): ...
class TpmSecretUnavailable(NovaException, template=(
        "Instance {instance_uuid} cannot start: the secret of its virtual TPM cannot be decrypted")): ...
class InstanceIsLocked(Conflict, template="Instance {instance_uuid} is locked"): ...
class InstanceNotReady(Conflict, template="Instance {instance_id} is not ready"): ...


class InstanceIsBusy(Conflict,
                     template="Cannot '{method}' instance {instance_uuid} while another operation runs on it"):
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
    """A guest whose file systems could not be frozen for a snapshot, although its image requires it."""


class SnapshotFailed(NovaException, template="The snapshot of instance {instance_id} failed: {reason}"): ...


# --- hosts -----------------------------------------------------------------------------------------------
class NoValidHost(NovaException,
                  template="No valid host was found. {reason}",
                  inside_template="No valid host was found. {detail}"):
    """A request without a suitable host; ``detail`` lists the filters with the number of hosts that they rejected."""


class MaxRetriesExceeded(NovaException, template=(
        "Exceeded maximum number of retries. Exhausted all hosts available for retrying build failures for instance "
        "{instance_uuid}.")): ...
class UnsupportedGroupPolicy(Invalid, template="ServerGroup policy is not supported: {reason}"): ...


class ClaimLost(NovaException,
                template="No valid host was found. A selected host cannot take the server: {reason}."):
    """Resources of the selected ``node`` that another request has claimed. An alternate host is tried next. If there is
    none, users can read the message, so the message does not name the node."""


class UnknownOperation(Invalid, code=503, template="This release does not support the operation {name}."):
    """An unknown operation in a request or in the journal of a service of another release; clients get a 503."""


class StepTimeout(NovaException,
                  template="Step {step} did not complete on its host within its deadline.",
                  inside_template="Step {step} did not complete on host {host} within its deadline."): ...
class MigrationNotFound(NotFound, template="Migration {migration_id} could not be found."): ...
class MigrationNotFoundByStatus(MigrationNotFound,
                                template="Migration not found for instance {instance_id} with status {status}."): ...
class MigrationNotFoundForInstance(MigrationNotFound,
                                   template="Migration {migration_id} not found for instance {instance_id}"): ...
class InvalidMigrationState(Invalid, template=(
        "Cannot {method} migration {migration_id} of instance {instance_uuid} while it is {state}.")): ...


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
class BareMetalError(NovaException, template="The bare metal service could not change the node.",
                     inside_template="The bare metal service failed: {reason}"): ...
class NodeNotReady(NovaException, template="Bare metal node {node} cannot take the server: {reason}."): ...
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
