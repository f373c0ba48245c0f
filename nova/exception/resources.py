"""Errors of flavors, key pairs, services, aggregates, server groups and images."""

from nova.exception.base import Conflict, Forbidden, Invalid, NotFound, ServiceUnavailable


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


class ServiceHasShares(ServiceInUse):
    template = ("Unable to delete compute service that still has access to share {share_id}: the share service needs "
                "the address of the host to revoke the access. See nova-manage audit.")


class ServiceMigrating(ServiceInUse):
    template = ("Unable to delete compute service that has in-progress migrations. Complete the migrations or delete "
                "their servers first.")


class HostEvacuated(Invalid):
    """A host that has not confirmed the removal of guests of evacuated servers; ``advice`` is for the operator."""

    template = ("Unable to force up host {host}: servers were evacuated from it, and it has not confirmed the removal "
                "of their guests ({count} left). {advice}")


class ComputeHostNotFound(NotFound):
    template = "Compute host {host} could not be found."


class HostIdentityMismatch(Conflict):
    """A service that must not start, since its host name belongs to another machine."""

    template = "Host {host} must not start: {reason}"


class NodeOfAnotherHost(Conflict):
    """A node with claims that a second host reports."""

    template = ("Node {node} is registered as {name} of host {owner}, and servers have claims on it: host {host} must "
                "not report it. Two hosts have the same node id (state_path/compute_id), or a host was renamed.")


class HostBinaryNotFound(NotFound):
    template = "Could not find binary {binary} on host {host}."


class DrainNotFound(NotFound):
    template = "Host {host} was never drained since its service was created."


class DrainConflict(Conflict):
    template = "Host {host} is already being emptied by {kind}: stop it first."


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
