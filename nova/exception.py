"""Every error that Nova raises on purpose.

An error is a class with an HTTP status (``code``), a message template and named, JSON-able
arguments, so it travels over the bus by its class name and arguments and arrives as itself.
Only errors of this module may cross a service boundary; anything else becomes
:class:`InternalError` (the details stay in the log of the service that failed).
"""

from __future__ import annotations

from typing import Any, ClassVar


class NovaException(Exception):
    """Base class: ``code`` is the HTTP status, ``template`` the message with ``{named}`` arguments.

    Tenants read the message. What is theirs not to know (hosts, how many there are) is in ``inside_template``.
    """

    code: ClassVar[int] = 500
    template: ClassVar[str] = "An unknown exception occurred."
    inside_template: ClassVar[str] = ""
    registry: ClassVar[dict[str, type[NovaException]]] = {}

    def __init__(self, message: str | None = None, **kwargs: Any) -> None:
        self.kwargs = kwargs
        self.message = message if message is not None else self.template.format(**kwargs)
        super().__init__(self.message)

    @property
    def inside(self) -> str:
        """The message for operators: of logs and of what administrators see."""
        try:
            return self.inside_template.format(**self.kwargs) or self.message
        except KeyError:  # raised with a message of its own, or by another release
            return self.message

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        NovaException.registry[cls.__name__] = cls

    @staticmethod
    def rebuild(name: str, message: str, kwargs: dict[str, Any]) -> NovaException:
        """The error of class ``name`` as the other side raised it (InternalError if unknown here)."""
        cls = NovaException.registry.get(name, InternalError)
        return cls(message, **kwargs)


class InternalError(NovaException):
    """A defect in the other service; its log has the traceback under the same request id."""

    template = "Unexpected error in {where}."


# --- families, by HTTP status --------------------------------------------------------------
class Invalid(NovaException):
    code = 400
    template = "Bad request."


class NotSupported(Invalid):
    template = "This is not supported."


class Forbidden(NovaException):
    code = 403
    template = "Forbidden."


class NotFound(NovaException):
    code = 404
    template = "Resource could not be found."


class Conflict(NovaException):
    code = 409
    template = "Conflict."


class NotImplementedHere(NovaException):
    code = 501
    template = "Unable to {what}: not supported by the driver."


class ServiceUnavailable(NovaException):
    code = 503
    template = "Service is unavailable at this time."


class NobodyListens(ServiceUnavailable):
    """Nothing was sent: whoever should answer is not there."""


class DatabaseUnusable(ServiceUnavailable):
    """For operators: the database of the configuration is not there, does not let us in or lacks tables."""

    template = "The database {url} cannot be used: {reason}"


# --- requests --------------------------------------------------------------------------------
class IdempotencyKeyReused(Conflict):
    template = "Idempotency-Key was used before, for a request with another body."


class InvalidInput(Invalid):
    template = "Invalid input received: {reason}"


class MarkerNotFound(Invalid):
    template = "marker [{marker}] not found"


class PolicyNotAuthorized(Forbidden):
    template = "Policy doesn't allow {action} to be performed."


class CallerRefused(Forbidden):
    """Of a message: whoever sent it may not ask that."""

    template = "{what} is refused."


class OverQuota(Forbidden):
    template = "Quota exceeded for {overs}: Requested {req}, but already used {used} of {allowed} {overs}"


class QuotaLimit(Forbidden):
    """A limit that is not a sum over servers (key pairs, metadata items, ...)."""

    template = "Quota exceeded."


class QuotaBelowUsage(Invalid):
    template = "Quota limit {limit} for {key} must be greater than or equal to already used and reserved {minimum}."


class QuotaAboveProject(Invalid):
    template = "Quota limit {limit} for {key} must be less than or equal to {maximum}."


# --- servers ---------------------------------------------------------------------------------
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


class InstanceActionNotFound(NotFound):
    template = "Action for request_id {request_id} on instance {instance_uuid} not found"


class ConsoleLogUnavailable(NotFound):
    template = "The console log of instance {instance_id} is not available."


# --- resources -------------------------------------------------------------------------------
class FlavorNotFound(NotFound):
    template = "Flavor {flavor_id} could not be found."


class FlavorExists(Conflict):
    template = "Flavor with name {name} already exists."


class FlavorIdExists(Conflict):
    template = "Flavor with ID {flavor_id} already exists."


class FlavorAccessExists(Conflict):
    template = "Flavor access already exists for flavor {flavor_id} and project {project_id} combination."


class FlavorAccessNotFound(NotFound):
    template = "Flavor access not found for {flavor_id} / {project_id} combination."


class FlavorExtraSpecsNotFound(NotFound):
    template = "Flavor {flavor_id} has no extra specs with key {key}."


class KeypairNotFound(NotFound):
    template = "Keypair {name} not found for user {user_id}"


class KeyPairExists(Conflict):
    template = "Key pair '{key_name}' already exists."


class InvalidKeypair(Invalid):
    template = "Keypair data is invalid: {reason}"


class ServiceNotFound(NotFound):
    template = "Service {service_id} could not be found."


class ServiceInUse(Conflict):
    template = "Unable to delete compute service that is hosting instances. Migrate or delete the instances first."


class ServiceMigrating(ServiceInUse):
    template = ("Unable to delete compute service that has in-progress migrations. Complete the migrations or delete "
                "their servers first.")


class HostEvacuated(Invalid):
    """Servers went on elsewhere while the host was down, and it has not let go of them yet."""

    template = ("Unable to force up host {host}: servers were evacuated from it, and it has yet to remove their "
                "guests. It does when nova-compute starts there.")


class ComputeHostNotFound(NotFound):
    template = "Compute host {host} could not be found."


class HostIdentityMismatch(Conflict):
    """A machine and the name that it registers by do not belong together: it must not start."""

    template = "Host {host} must not start: {reason}"


class NodeOfAnotherHost(Conflict):
    """A node with claims cannot change its host: two hosts report the same node."""

    template = ("Node {node} is known as {name} of host {owner}, and servers have claims on it: host {host} must not "
                "report it. Two hosts have the same node id (state_path/compute_id), or a host was renamed.")


class HostBinaryNotFound(NotFound):
    template = "Could not find binary {binary} on host {host}."


class AggregateNotFound(NotFound):
    template = "Aggregate {aggregate_id} could not be found."


class AggregateNameExists(Conflict):
    template = "Aggregate {aggregate_name} already exists."


class AggregateHostExists(Conflict):
    template = "Aggregate {aggregate_id} already has host {host}."


class AggregateHostNotFound(NotFound):
    template = "Aggregate {aggregate_id} has no host {host}."


class InvalidAggregateAction(Invalid):
    template = "Unable to perform action '{action}' on aggregate {aggregate_id}. Reason: {reason}."


class AggregateHostConflict(Conflict):
    template = "Unable to perform action '{action}' on aggregate {aggregate_id}. Reason: {reason}."


class ServerGroupNotFound(NotFound):
    template = "Instance group {group_uuid} could not be found."


class ImageNotFound(NotFound):
    template = "Image {image_id} could not be found."


class ImageNotActive(Invalid):
    template = "Image {image_id} is not active."


class ImageUnacceptable(Invalid):
    template = "Image {image_id} is unacceptable: {reason}"


class ImageNotAuthorized(Forbidden):
    template = "Not authorized for image {image_id}."


class ImageBackendUnavailable(ServiceUnavailable):
    template = "The image service could not be reached: {reason}"


class FlavorDiskTooSmall(Invalid):
    template = "The created instance's disk would be too small."


class FlavorMemoryTooSmall(Invalid):
    template = "Flavor's memory is too small for requested image."


# --- networks --------------------------------------------------------------------------------
class NetworkNotFound(NotFound):
    template = "Network {network_id} could not be found."


class NetworkAmbiguous(Conflict):
    template = "Multiple possible networks found, use a Network ID to be more specific."


class NetworkInUse(Conflict):
    template = "Network {network_id} is still in use."


class NetworkDuplicate(Conflict):
    template = "Network {name} or its CIDR {cidr} already exists."


class NoMoreFixedIps(Conflict):
    template = "No fixed IP addresses available for network: {network_id}"


class FixedIpInUse(Invalid):
    template = "Fixed IP address {address} is already in use."


class FixedIpInvalid(Invalid):
    template = "Fixed IP address {address} is not in network {network_id}."


class FixedIpNotFoundForInstance(Invalid):
    template = "Instance {instance_uuid} does not have fixed IP address {address}."


class NetworkSetupError(NovaException):
    template = "The network could not be set up on the host: {reason}"


class VirtualInterfaceCreateFailed(NovaException):
    template = "Virtual Interface creation failed: {reason}"


class NetworkServiceUnavailable(ServiceUnavailable):
    template = "The network service could not be reached: {reason}"


class NetworkRequiresSubnet(Invalid):
    template = "Network {network_id} requires a subnet in order to boot instances on."


class ExternalNetworkAttachForbidden(Forbidden):
    template = "It is not allowed to create an interface on external network {network_id}"


class PortInUse(Conflict):
    template = "Port {port_id} is still in use."


class PortNotUsable(Invalid):
    template = "Port {port_id} not usable for instance {instance_uuid}."


class PortRequiresFixedIp(Invalid):
    template = "Port {port_id} requires a FixedIP in order to be used."


class PortBindingFailed(NovaException):
    template = "Binding failed for port {port_id}, please check the logs of the network service for more information."


class NoUniqueMatch(Conflict):
    template = "No Unique Match Found."


class InterfaceAttachFailed(NovaException):
    template = "Failed to attach network adapter device to {instance_uuid}: {reason}"


class InterfaceAttachTimedOut(ServiceUnavailable):
    """The interface may be attached yet."""

    template = "The network service has not made the interface in time; the server may get it later."


class PortNotFound(NotFound):
    template = "Port id {port_id} could not be found."


class PortNotSupported(Invalid):
    template = "Ports are not supported by the network driver in use."


class SecurityGroupNotFound(NotFound):
    template = "Security group {security_group_id} not found."


class SecurityGroupExists(Invalid):
    template = "Security group {name} already exists"


class SecurityGroupInUse(Invalid):
    template = "Security group {security_group_id} is in use."


class SecurityGroupRuleNotFound(NotFound):
    template = "Security group rule {rule_id} not found."


# --- volumes ---------------------------------------------------------------------------------
class VolumeNotFound(NotFound):
    template = "Volume {volume_id} could not be found."


class VolumeTypeNotFound(NotFound):
    template = "Volume type {volume_type} could not be found."


class SnapshotNotFound(NotFound):
    template = "Snapshot {snapshot_id} could not be found."


class InvalidVolume(Invalid):
    template = "Invalid volume: {reason}"


class VolumeNotAttached(NotFound):
    template = "Instance {instance_uuid} is not attached to volume {volume_id}"


class DevicePathInUse(Conflict):
    template = "The device {path} of instance {instance_uuid} is in use."


class TooManyDiskDevices(Forbidden):
    template = "A server may have at most {maximum} disk devices."


class VolumeServiceUnavailable(ServiceUnavailable):
    """It does not answer; what it was asked for may be done."""

    template = "The volume service is not available: {reason}."


class VolumeUnusable(NovaException):
    template = "Volume {volume_id} cannot be used on its host: {reason}"


# --- scheduling, claims and hosts ------------------------------------------------------------
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
    """Asked for, or found in the journal, by a neighbour of another release."""

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


class HostDown(NovaException):
    template = "The compute host stopped responding."
    inside_template = "Compute host {host} stopped responding."


class MetadataNotFound(NotFound):
    template = "Metadata item was not found"
