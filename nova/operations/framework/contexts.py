"""The contexts of steps: interfaces to what a step may read and change on a conductor and on a compute host.

Operations import neither a database nor a hypervisor. Conductors and nova-compute pass real implementations, unit tests
pass fakes."""

import datetime
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.accounts.flavor import Flavor
from nova.objects.hosts.scheduling import RequestSpec, Selection
from nova.objects.images.image import Image
from nova.objects.networks.network import VIF, NetworkRequest, RuleSet
from nova.objects.servers.action import Failure
from nova.objects.servers.guest import DiskImage
from nova.objects.servers.instance import BlockDevice, Instance, Key, Personality
from nova.objects.servers.migration import Migration
from nova.objects.volumes.share import Share, ShareMapping
from nova.objects.volumes.volume import ConnectionInfo, Volume, VolumeEncryption
from nova.operations.framework import resource_contexts
from nova.operations.framework.guest_driver import GuestDriver


class PrecheckContext(Protocol):
    """Context of ``Operation.prepare``: read-only checks of a request before its accepting transaction."""

    ctx: RequestContext
    instance: Instance

    def check_volume(self, volume_id: str, status: str) -> Volume | None:
        """Check with the volume service that the caller may use the volume and that it has the given status. A
        multi-attach volume may be in use by other servers instead. Returns None if Nova itself manages the volume.
        Raises VolumeNotFound, InvalidVolume, Forbidden, VolumeServiceUnavailable."""

    def check_detachable(self, volume_id: str) -> bool:
        """Check with the volume service that the caller may detach the volume. Returns False if the volume is missing
        or in error there, so that it can be detached without the service. Raises VolumeNotFound (of another project),
        InvalidVolume, Forbidden, VolumeServiceUnavailable."""

    def check_not_shared(self, device: BlockDevice) -> None:
        """Check that no other server uses the volume. Raises VolumeShared, VolumeNotFound, VolumeServiceUnavailable."""

    def check_snapshots(self) -> None:
        """Check that the caller may snapshot each volume of the instance. Raises InvalidVolume (wrong status, or no
        snapshot support), VolumeNotFound, QuotaLimit, Forbidden, VolumeServiceUnavailable."""

    def key_of(self, volume: Volume) -> VolumeEncryption | None:
        """Return the encryption, with the key, of a volume returned by check_volume(), or None. The key manager checks
        the rights of the caller. Raises InvalidVolume, KeyManagerUnavailable, and the errors of check_volume()."""

    def key_of_successor(self, old: BlockDevice, new: str) -> VolumeEncryption | None:
        """Return the encryption of volume ``new``, which replaces ``old``. See key_of()."""

    def check_swap(self, old: str, new: str) -> bool:
        """Return True if the volume service migrates volume ``old`` into ``new``, which then takes the id of ``old``.
        Raises VolumeNotMigrated (``new`` may not replace ``old``), VolumeNotFound, InvalidVolume,
        MultiattachSwapUnsupported, VolumeServiceUnavailable."""

    def check_share(self, share_id: str) -> Share:
        """Return the share if the caller may attach it. Raises ShareNotFound, ShareStatusIncorrect,
        ShareProtocolUnsupported, Forbidden, Conflict (not accessible from the host), ShareServiceUnavailable."""

    def choose_network(self, wanted: NetworkRequest) -> NetworkRequest:
        """Return the request for one more interface, completed and checked against the rights of the caller. Without a
        network in the request, the only network of the project is chosen. Raises NetworkNotFound if there is none, and
        the errors of :meth:`nova.network.base.Allocator.validate`."""


class Control(Protocol):
    """Context of a step on a conductor. Changes are written in one transaction when the step ends, or not at all. """

    instance: Instance
    waited_out: bool  # True if the period of the Wait that the step raised is over

    def now(self) -> datetime.datetime:
        """Return the current time of the database's clock, which all conductors share: timezone-aware, in UTC."""

    @property
    def plugging_timeout(self) -> int:
        """Return the seconds to wait until interfaces are plugged; 0 means not to wait."""

    @property
    def plugging_is_fatal(self) -> bool:
        """Return True if the operation fails when interfaces are not plugged within ``plugging_timeout``."""

    @property
    def reimage_timeout(self) -> int:
        """Return the seconds per GiB that a volume service may take to rewrite a volume."""

    @property
    def volumes(self) -> resource_contexts.ServerVolumes: ...
    @property
    def outside_volumes(self) -> resource_contexts.OutsideVolumes: ...
    @property
    def shares(self) -> resource_contexts.ServerShares: ...
    @property
    def outside_shares(self) -> resource_contexts.OutsideShares: ...
    @property
    def interfaces(self) -> resource_contexts.ServerInterfaces: ...
    @property
    def outside_interfaces(self) -> resource_contexts.OutsideInterfaces: ...
    @property
    def images(self) -> resource_contexts.ServerImages: ...

    @property
    def network_is_outside(self) -> bool:
        """Return True if an external service (Neutron) manages the interfaces."""

    def set(self, **changes: Any) -> None:
        """Change columns of the instance. ``instance`` has the new values immediately."""

    def set_items(self, items: Mapping[str, str | None]) -> None:
        """Change these items of the instance's system_metadata; None removes an item. Other items are not overwritten,
        because guests and users change them concurrently."""

    def quiesce(self, host: str) -> None:
        """Quiesce the file systems of the running guest on the host. For external steps, which must call unquiesce().
        Raises InstanceQuiesceFailed, NotImplementedHere, GuestNotFound, ServiceUnavailable."""

    def unquiesce(self, host: str) -> None:
        """Thaw the guest's file systems if they are quiesced. Raises ServiceUnavailable."""

    def check_secrets(self) -> None:
        """Check that the stored password for the guest can be decrypted. Raises SecretUnreadable."""

    def fault(self, failure: Failure) -> None:
        """Record the fault that the user sees, and mark the action's message as Error."""

    def select(self, spec: RequestSpec) -> list[list[Selection]]:
        """Request hosts from a scheduler. Raises NoValidHost."""

    def group_hosts(self, spec: RequestSpec) -> None:
        """Add the current hosts of the server group's members and of the hinted servers to ``spec``."""

    def claim(self, selection: Selection, spec: RequestSpec, consumer: str = "") -> None:
        """Claim the resources of ``spec`` at ``selection`` for the instance, or for ``consumer`` (a migration). The
        step fails with ClaimLost if the resources are not free any more."""

    def release_claim(self, consumer: str = "") -> None:
        """Release the claims of the instance, or of ``consumer`` (a migration), on all hosts."""

    def rekey_claim(self, consumer: str) -> None:
        """Transfer the claim of ``consumer`` (a migration) to the instance, whose own claim was released before."""

    def use_claim(self, consumer: str = "") -> None:
        """Set the dedicated resources of the instance to those of its claim, or of the claim of ``consumer``."""

    def migrate(self, uuid: str, **changes: Any) -> None:
        """Change columns of a migration. With ``open=False`` its hosts are no longer possible hosts of the guest."""

    def migration(self, uuid: str) -> Migration:
        """Return the current row of the migration. Raises MigrationNotFound."""

    def close_migrations(self) -> None:
        """Close all migrations of the instance and release their claims and quota."""

    def charge(self, cores: int = 0, ram: int = 0) -> None:
        """Change the instance's quota usage by these amounts (MiB of RAM; negative to release), without a check. """

    def soft_delete(self, at: datetime.datetime | None = None) -> None:
        """Release the quota of the instance until undelete() and make it eligible for reclaim. ``at``: start of the
        reclaim interval, unless the instance is soft-deleted already. Default: now."""

    def undelete(self) -> None:
        """Count a soft-deleted instance against its quota again, without a check, and cancel the reclaim."""

    def evict(self, host: str, keep_disks: bool) -> None:
        """Record that the host must remove the guest as soon as possible (``keep_disks``: but not its disks)."""

    def keep(self, host: str) -> None:
        """Cancel the removal of the guest from the host."""

    def zone_of(self, host: str) -> str:
        """Return the availability zone of a host."""

    def host_up(self, host: str) -> bool:
        """Return True if the compute service of the host is alive and not forced down."""

    def evicted_hosts(self) -> list[str]:
        """Return the hosts that still have to remove remains of the instance. Until then it cannot be placed there."""

    def hasten_eviction(self, host: str) -> None:
        """Make the host remove the remains of the instance now instead of at its next periodic check."""

    def events(self, *keys: str) -> dict[str, str]:
        """Return the status of each of these external events that has arrived, by its key. See
        :func:`nova.operations.framework.base.event_key`."""

    def forget_events(self, *keys: str) -> None:
        """Delete these external events: they were handled, or arrived before the operation began to wait."""

    def release_quota(self) -> None:
        """Stop counting the instance against the quota of its project."""

    def finish_io(self, failed: bool | None, node_uuid: str | None = None, consumer: str = "") -> None:
        """Decrement the number of heavy operations on a node and update its count of failed builds. ``node_uuid``:
        default is the node with the claim of the instance, or of ``consumer``. ``failed``: True counts a failed build,
        False resets the count, None does not change it."""


class ServiceControl(Control, Protocol):
    """Context of an external step for the back end that calls the service."""

    ctx: RequestContext

    def connector(self, host: str) -> dict[str, Any] | None:
        """Return the properties with which a service grants the host access, or None if the host has reported none."""

    def key_of(self, volume: Volume) -> VolumeEncryption | None:
        """See :meth:`PrecheckContext.key_of`."""


class Acceptance(Control, Protocol):
    """Context of :meth:`Operation.accept`. It is inside the accepting transaction, so it may read, check and refuse."""

    ctx: RequestContext
    action_uuid: str
    # True if a server may be resized on its current host ([DEFAULT]allow_resize_to_same_host).
    same_host_allowed: bool
    offloads_at_once: bool  # True if a shelved server is offloaded immediately ([DEFAULT]shelved_offload_time = 0)

    def request_spec(self, flavor: Flavor, host: str | None = None, forced: bool = False) -> RequestSpec:
        """Return the scheduler request for the server with this flavor. With ``forced``, ``host`` skips the filters."""

    def flavor(self, flavor_id: str) -> Flavor:
        """Return a flavor that the project may use. Raises FlavorNotFound."""

    def key(self, name: str) -> Key:
        """Return a copy of a key pair of the caller. Raises InvalidInput."""

    def check_amounts(self, metadata: dict[str, str], personality: Sequence[Personality]) -> None:
        """Check the number of metadata items and personality files against the quota. Raises QuotaLimit."""

    def keep_secret(self, password: str | None) -> None:
        """Store the password encrypted until the operation ends. Orders for hosts contain the password until then."""

    def encrypted_for_user(self, password: str) -> str:
        """Return the password encrypted with the server's public key (base64), or "" if it has no usable RSA key."""

    def reserve(self, cores: int = 0, ram: int = 0) -> None:
        """Reserve quota like charge(), but check the project's limits. Raises OverQuota."""

    def check_room_to_wait(self) -> None:
        """Check the quota of soft-deleted servers of the project, with this server. Raises TooManyWait."""

    def reserve_again(self) -> None:
        """Count a soft-deleted instance like undelete(), but check the project's limits. Raises OverQuota."""

    def open_migrations(self) -> list[Migration]:
        """Return the migrations of the instance that are still open."""

    def open_migration(self, migration: Migration) -> None:
        """Write the migration. From now on its hosts are possible hosts of the guest."""

    def the_migration(self, *statuses: str) -> Migration:
        """Return the newest migration of the instance with one of these statuses. Raises MigrationNotFoundByStatus."""

    def host_has_trait(self, trait: str) -> bool:
        """Return True if the instance's node has the trait."""

    def compute_exists(self, host: str) -> bool: ...

    def check_zone(self, zone: str) -> None:
        """Check that the availability zone has a host. Raises InvalidInput."""


class HostNetwork(Protocol):
    """The methods of the host's network back end that steps use."""

    def plug(self, instance: Instance, rules: RuleSet) -> None: ...
    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None: ...
    def unplug(self, instance: Instance) -> None: ...
    def unplug_vif(self, instance: Instance, vif: VIF) -> None: ...


class HostVolumes(Protocol):
    """The methods of the host's volume back end that steps use."""

    def disconnect(self, info: ConnectionInfo) -> None: ...


class HostContext(Protocol):
    """Context of a step on a compute host."""

    instance: Instance
    driver: GuestDriver
    network: HostNetwork
    volumes: HostVolumes
    rules: RuleSet
    shutdown_timeout: int
    # The shutdown timeout set by the image; None if not set: a soft reboot then uses its own default.
    image_shutdown_timeout: int | None
    # Set when the running step should end early: by an interrupt, or by an operation that supersedes this one.
    cancelled: threading.Event

    def set(self, **changes: Any) -> None:
        """Report changed columns of the instance together with the end of the step."""

    def result(self, **values: Any) -> None:
        """Report fields of the operation's data together with the end of the step, for the steps that follow."""

    def progress(self, percent: int, **values: Any) -> None:
        """Report the progress in percent. The report can be lost. :meth:`Operation.noted` receives ``values``."""

    def connected(self, device: BlockDevice) -> BlockDevice:
        """Connect the volume and return its device for the hypervisor. Raises VolumeUnusable, DiskFull,
        ImageUnacceptable."""

    def connect_volumes(self, instance: Instance | None = None) -> None:
        """Connect all volumes of ``instance`` (default: the instance of the step) and update its block devices."""

    def disconnect_volumes(self) -> None:
        """Disconnect the volumes of the instance, whose guest does not exist on this host any more."""

    def connect_shares(self, instance: Instance | None = None) -> None:
        """Mount the shares of ``instance`` (default: that of the step), update its mappings. Raises ShareUnusable."""

    def disconnect_shares(self, *mappings: ShareMapping) -> None:
        """Unmount these shares (default: all) of a guest that is stopped. Raises ShareUnusable."""

    def prepare_disks(self, root: Image | None = None) -> None:
        """Fetch the images into the cache and create the config drive and the guest's disks. ``root``: image of the
        root disk, if it is not the server's own image."""

    def replace_disks(self, token: str, keep_ephemerals: bool, timeout: int) -> None:
        """Replace the local disks of a guest by new ones made like prepare_disks(), with a new config drive. The guest
        is shut down within ``timeout`` seconds after its images are in the cache. ``token`` identifies the new disks,
        so that a repeated call finds them."""

    def rescue(self, image: Image | None, kernel_id: str, ramdisk_id: str, timeout: int) -> None:
        """Shut the guest down within ``timeout`` seconds and start it from a rescue image with a new config drive.
        ``image``: None for the host's configured rescue image. Raises the errors of prepare_disks()."""

    def upload(self, image_id: str, made: DiskImage) -> None:
        """Upload the data of an image that is queued. Succeeds if the image already has its data. Raises ImageNotFound
        (the image was deleted meanwhile), ImageBackendUnavailable."""

    def spawn(self, paused: bool = False, root: Image | None = None) -> None:
        """Define and start the guest on the prepared disks, interfaces and volumes."""
