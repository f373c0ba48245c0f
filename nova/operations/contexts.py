"""What steps may touch: the conductor's side and a host's side, as interfaces.

An operation tells its story without importing a database or a hypervisor; the conductor and the
compute inject the real thing, a unit test a fake.
"""

from __future__ import annotations

import datetime
import threading
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from nova.context import RequestContext
from nova.objects.action import Failure
from nova.objects.flavor import Flavor
from nova.objects.guest import DiskImage
from nova.objects.image import Image
from nova.objects.instance import BlockDevice, Instance, Key, Personality
from nova.objects.migration import Migration
from nova.objects.network import VIF, NetworkRequest, RuleSet
from nova.objects.scheduling import RequestSpec, Selection
from nova.objects.share import Share, ShareMapping
from nova.objects.volume import ConnectionInfo, Volume, VolumeContent, VolumeEncryption
from nova.operations.guest_driver import GuestDriver
from nova.operations.part_contexts import (
    OutsideInterfaces,
    OutsideShares,
    OutsideVolumes,
    ServerImages,
    ServerInterfaces,
    ServerShares,
    ServerVolumes,
)


class Desk(Protocol):
    """Where a request is looked at before it is accepted: reads only, outside of any transaction."""

    ctx: RequestContext
    instance: Instance

    def check_volume(self, volume_id: str, status: str) -> Volume | None:
        """An outside service lets the caller use the volume, which is in this status (or in use by others, if several
        servers may have it). None: no outside service keeps it.

        Raises VolumeNotFound, InvalidVolume, Forbidden, VolumeServiceUnavailable.
        """

    def check_detachable(self, volume_id: str) -> bool:
        """An outside service lets the caller detach the volume. False: the volume is gone there, or broken, so that
        nobody need be asked.

        Raises VolumeNotFound (it is none of the caller's), InvalidVolume, Forbidden, VolumeServiceUnavailable.
        """

    def check_not_shared(self, device: BlockDevice) -> None:
        """No other server has this volume of the instance. Raises VolumeShared, VolumeNotFound,
        VolumeServiceUnavailable."""

    def check_snapshots(self) -> None:
        """The caller may have a snapshot of each volume of the instance.

        Raises InvalidVolume (its back end has none, or its status is another one), VolumeNotFound, QuotaLimit,
        Forbidden, VolumeServiceUnavailable.
        """

    def key_of(self, volume: Volume) -> VolumeEncryption | None:
        """By what the volume, as check_volume() returned it, is encrypted, and its key, which the caller may have.

        Raises InvalidVolume, KeyManagerUnavailable, and what check_volume() does.
        """

    def key_of_successor(self, old: BlockDevice, new: str) -> VolumeEncryption | None:
        """The same of the volume that is to take the place of ``old``."""

    def check_swap(self, old: str, new: str) -> bool:
        """Whether the service of volume ``old`` migrates it into ``new``, so that it keeps its id.

        Raises VolumeNotMigrated (one may not take the place of the other), VolumeNotFound, InvalidVolume,
        MultiattachSwapUnsupported, VolumeServiceUnavailable.
        """

    def check_share(self, share_id: str) -> Share:
        """The caller may give the instance this share.

        Raises ShareNotFound, ShareStatusIncorrect, ShareProtocolUnsupported, Forbidden, Conflict (its host has not got
        it), ShareServiceUnavailable.
        """

    def choose_network(self, wanted: NetworkRequest) -> NetworkRequest:
        """What one interface more shall be, as the caller may have it; without a network it is the project's only one.

        Raises what :meth:`nova.network.allocator.Allocator.validate` raises, and NetworkNotFound when there is none.
        """


class Control(Protocol):
    """The conductor's side. Everything here is written together, when the step ends, or not at all."""

    instance: Instance
    # The time that the step may wait (Wait) is over.
    waited_out: bool

    def now(self) -> datetime.datetime:
        """Return the time by the database's clock, which all conductors share: aware, in UTC."""

    @property
    def plugging_timeout(self) -> int:
        """Seconds to wait until interfaces are plugged; 0: do not."""

    @property
    def plugging_is_fatal(self) -> bool:
        """Whether the operation fails without."""

    @property
    def reimage_timeout(self) -> int:
        """Seconds per GiB that a volume service may take to write a volume anew."""

    @property
    def volumes(self) -> ServerVolumes:
        """In the server's row and, where Nova keeps volumes itself, in theirs."""

    @property
    def outside_volumes(self) -> OutsideVolumes: ...

    @property
    def shares(self) -> ServerShares: ...

    @property
    def outside_shares(self) -> OutsideShares: ...

    @property
    def interfaces(self) -> ServerInterfaces:
        """In the server's row and, where Nova keeps networks itself, in theirs."""

    @property
    def outside_interfaces(self) -> OutsideInterfaces: ...

    @property
    def images(self) -> ServerImages: ...

    @property
    def network_is_outside(self) -> bool:
        """Whether an outside service keeps the interfaces."""

    def set(self, **changes: Any) -> None:
        """Change columns of the instance (they show in ``instance`` at once)."""

    def set_items(self, items: Mapping[str, str | None]) -> None:
        """Change these items of the instance's system_metadata (None: there is none). The others stay as they are when
        this is written: guests and users write some of them meanwhile."""

    def quiesce(self, host: str) -> None:
        """The host brings the file systems of the running guest to rest: for external steps, which unquiesce() when
        they are done. Raises InstanceQuiesceFailed, NotImplementedHere, GuestNotFound, ServiceUnavailable."""

    def unquiesce(self, host: str) -> None:
        """They go on, if they were at rest. Raises ServiceUnavailable."""

    def check_secrets(self) -> None:
        """Whether the password that the guest is to be given can be read. Raises SecretUnreadable."""

    def fault(self, failure: Failure) -> None:
        """Record why, for the user; marks the action's message as Error."""

    def select(self, spec: RequestSpec) -> list[list[Selection]]:
        """Ask a scheduler. Raises NoValidHost."""

    def group_hosts(self, spec: RequestSpec) -> None:
        """Fill in where the members of the server group and the hinted servers are now."""

    def claim(self, selection: Selection, spec: RequestSpec, consumer: str = "") -> None:
        """Take what ``spec`` asks for at ``selection``, for the instance or for ``consumer`` (a migration);
        ClaimLost fails the step if it cannot be had there any more."""

    def release_claim(self, consumer: str = "") -> None:
        """Give back whatever the instance, or ``consumer`` (a migration), holds on any host."""

    def rekey_claim(self, consumer: str) -> None:
        """What ``consumer`` (a migration) holds is the instance's from now on; its own claim was released before."""

    def use_claim(self, consumer: str = "") -> None:
        """The instance is where ``consumer`` (a migration; else itself) has its claim, with that one's cells and
        devices."""

    def migrate(self, uuid: str, **changes: Any) -> None:
        """Change columns of a migration; ``open=False`` ends the places that it gives the guest."""

    def migration(self, uuid: str) -> Migration:
        """The migration as it is now. Raises MigrationNotFound."""

    def close_migrations(self) -> None:
        """End all migrations of the instance: their claims and what they charged are given back."""

    def charge(self, cores: int = 0, ram: int = 0) -> None:
        """What the instance counts for its project changes by so much (below 0: less; MiB); nothing is checked."""

    def soft_delete(self, at: datetime.datetime | None = None) -> None:
        """The server counts nothing from now on, until undelete(), and may be reclaimed (``at``: since when, unless it
        is soft-deleted already; None: now)."""

    def undelete(self) -> None:
        """The server, if it is soft-deleted, counts again (nothing is checked) and is not reclaimed."""

    def evict(self, host: str, keep_disks: bool) -> None:
        """The guest may not stay on the host: it removes it as soon as it can (``keep_disks``: not its disks)."""

    def keep(self, host: str) -> None:
        """The guest may stay on the host after all."""

    def zone_of(self, host: str) -> str:
        """The availability zone of a host."""

    def host_up(self, host: str) -> bool:
        """Whether its compute gives signs of life, and nobody has said that it is down."""

    def evicted_hosts(self) -> list[str]:
        """Hosts that have yet to remove what is left of the instance: it cannot go there now."""

    def hasten_eviction(self, host: str) -> None:
        """Have the host remove now what is left there of the instance: by itself it looks every few minutes."""

    def events(self, *keys: str) -> dict[str, str]:
        """Those of these external events (:func:`nova.operations.base.event_key`) that came: key -> status."""

    def forget_events(self, *keys: str) -> None:
        """These external events were seen, or are from before."""

    def release_quota(self) -> None:
        """The instance no longer counts against its project."""

    def finish_io(self, failed: bool | None, node_uuid: str | None = None, consumer: str = "") -> None:
        """The node (None: the one with the claim of the instance, or of ``consumer``) has one heavy operation less;
        ``failed`` counts a failed build (False clears the count, None leaves it)."""


class Acceptance(Control, Protocol):
    """What :meth:`Operation.accept` may do beside: it is in the transaction already, so it may ask and refuse."""

    ctx: RequestContext
    action_uuid: str
    # May a server be resized on the host that it is on? ([DEFAULT]allow_resize_to_same_host)
    same_host_allowed: bool
    # Does a server that is shelved give its host back at once? ([DEFAULT]shelved_offload_time)
    offloads_at_once: bool

    def request_spec(self, flavor: Flavor, host: str | None = None, forced: bool = False) -> RequestSpec:
        """What to ask a scheduler for, to place the server with this flavor; ``forced``: ``host`` skips the filters."""

    def flavor(self, flavor_id: str) -> Flavor:
        """A flavor that the project may use. Raises FlavorNotFound."""

    def key(self, name: str) -> Key:
        """A copy of a key pair of the caller. Raises InvalidInput."""

    def check_amounts(self, metadata: dict[str, str], personality: Sequence[Personality]) -> None:
        """Whether the server may have so much. Raises QuotaLimit."""

    def keep_secret(self, password: str | None) -> None:
        """Hosts get it with their orders until the operation has ended; meanwhile it is encrypted."""

    def sealed_for_user(self, password: str) -> str:
        """The password, encrypted with the server's own public key (base64); "" if it has none of RSA that is large
        enough."""

    def reserve(self, cores: int = 0, ram: int = 0) -> None:
        """As charge(), within the project's limits. Raises OverQuota."""

    def check_room_to_wait(self) -> None:
        """Whether the project's soft-deleted servers, with this one, are within its quota. Raises TooManyWait."""

    def reserve_again(self) -> None:
        """As undelete(), within the project's limits. Raises OverQuota."""

    def open_migrations(self) -> list[Migration]:
        """The instance's migrations that are not over."""

    def open_migration(self, migration: Migration) -> None:
        """Write the migration: from now on its hosts are places of the guest."""

    def the_migration(self, *statuses: str) -> Migration:
        """The newest migration of the instance that is in one of these states. Raises MigrationNotFoundByStatus."""

    def add_volume(self, device: BlockDevice) -> BlockDevice:
        """Give the instance a volume of its project; returns the device with its name.

        Raises VolumeNotFound, InvalidVolume (of two that want it one wins), DevicePathInUse, TooManyDiskDevices.
        """

    def begin_swap(self, old: BlockDevice, volume_id: str, encryption: VolumeEncryption | None) -> BlockDevice:
        """Give the instance a volume (``encryption``: its own) that is to take the place of ``old``; returns its
        device, which is not shown.

        Raises VolumeNotFound (the new one), InvalidVolume (one of them is not free for that).
        """

    def add_interface(self, wanted: NetworkRequest) -> VIF:
        """Give the instance one interface more. Raises NetworkNotFound, NoMoreFixedIps, FixedIpInUse."""

    def reimage(self, image: Image) -> VolumeContent | None:
        """Have the volume that the server boots from made anew; the data that it has are returned, and stay until
        volumes.end_reimage(). None: an outside service keeps the volume, and is asked by a step.

        Raises InvalidInput (it is too small), InvalidVolume (somebody else is at it).
        """

    def bound_host(self) -> str | None:
        """The only host where the instance's volumes can be; None: it may be anywhere."""

    def volumes_bound_elsewhere(self, host: str) -> list[str]:
        """The ids of those of the instance's volumes that cannot be reached from this host."""

    def begin_detaching(self, device: BlockDevice) -> None:
        """Raises InvalidVolume when somebody else is attaching or detaching it."""

    def has_outside_volumes(self) -> bool:
        """Whether the instance has, or is to have, volumes that an outside service keeps."""

    def host_has_trait(self, trait: str) -> bool:
        """Whether the instance's node has it."""

    def compute_exists(self, host: str) -> bool: ...

    def check_zone(self, zone: str) -> None:
        """Raises InvalidInput: there is no host in such a zone."""


class HostNetwork(Protocol):
    """The verbs of the host's network back end that steps use."""

    def plug(self, instance: Instance, rules: RuleSet) -> None: ...
    def plug_vif(self, instance: Instance, vif: VIF, rules: RuleSet) -> None: ...
    def unplug(self, instance: Instance) -> None: ...
    def unplug_vif(self, instance: Instance, vif: VIF) -> None: ...


class HostVolumes(Protocol):
    """The verbs of the host's volume back end that steps use."""

    def disconnect(self, info: ConnectionInfo) -> None: ...


class Host(Protocol):
    """A compute host's side."""

    instance: Instance
    driver: GuestDriver
    network: HostNetwork
    volumes: HostVolumes
    rules: RuleSet
    shutdown_timeout: int
    # The same as the image sets it, None where it does not: a soft reboot has a default of its own.
    image_shutdown_timeout: int | None
    # Set when somebody wants the running step to end: an interrupt, or an operation that supersedes it.
    cancelled: threading.Event

    def set(self, **changes: Any) -> None:
        """Report changed columns of the instance with the step's end."""

    def result(self, **values: Any) -> None:
        """Report fields of the operation's data with the step's end, for the steps that follow."""

    def progress(self, percent: int, **values: Any) -> None:
        """Tell how far the step is; losing this loses nothing (:meth:`Operation.noted` gets the values)."""

    def connected(self, device: BlockDevice) -> BlockDevice:
        """The volume ready for the hypervisor. Raises VolumeUnusable, DiskFull, ImageUnacceptable."""

    def connect_volumes(self, instance: Instance | None = None) -> None:
        """The same for all volumes of ``instance`` (default: the order's), in their places."""

    def disconnect_volumes(self) -> None:
        """The guest is gone, or was never there: its volumes are not used here."""

    def connect_shares(self, instance: Instance | None = None) -> None:
        """The shares of ``instance`` (default: the order's) are there for its guest, in their places. Raises
        ShareUnusable."""

    def disconnect_shares(self, *mappings: ShareMapping) -> None:
        """The guest is off: these (without ``mappings`` all) are not used here. Raises ShareUnusable."""

    def prepare_disks(self, root: Image | None = None) -> None:
        """Fetch the images into the cache, make the config drive, make the guest's disks.

        ``root``: the image that its root disk is made of, where that is not the server's own.
        """

    def replace_disks(self, token: str, keep_ephemerals: bool, timeout: int) -> None:
        """The same, with a new config drive, for a guest that is shut down within ``timeout`` seconds and loses the
        local disks that it has, once its images are here, and all its new disks. ``token`` stands for these."""

    def rescue(self, image: Image | None, kernel_id: str, ramdisk_id: str, timeout: int) -> None:
        """Shut the guest down within ``timeout`` seconds and start it from this image (None: the one that the host is
        configured with, else its own), with a new config drive where it has one. Raises what prepare_disks() raises.
        """

    def upload(self, image_id: str, made: DiskImage) -> None:
        """Give an image that waits for them its data. Has it them: fine.

        Raises ImageNotFound: nobody wants it any more; ImageBackendUnavailable.
        """

    def spawn(self, paused: bool = False, root: Image | None = None) -> None:
        """Define and start the guest on what was prepared."""
