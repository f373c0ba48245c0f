"""The guests of a host: definition, start and end, queries, and a lock per guest."""

import contextlib
import logging
import os
import threading
from collections.abc import Iterator

from nova import exception
from nova.common import files
from nova.conf import CONF
from nova.objects.requirements.hardware import hardware, required_traits
from nova.objects.requirements.properties import Properties
from nova.objects.servers import states
from nova.objects.servers.guest import Diagnostics, GuestStatus
from nova.objects.servers.instance import Instance
from nova.virt.guest_files import directories
from nova.virt.guest_files.local_guests import LocalGuests
from nova.virt.guest_locks import LOCK_TIMEOUT, GuestLocks
from nova.virt.serial_ports import SerialPorts
from nova.virt.uml import cow, definition, diagnostics, disks, process, supervisor, taps
from nova.virt.uml.definition import Definition, Disk
from nova.virt.uml.watcher import Watcher

LOG = logging.getLogger(__name__)

ARCHITECTURE = "x86_64"
TRAITS = frozenset({"COMPUTE_NODE", "OWNER_NOVA", "HW_ARCH_X86_64", "COMPUTE_ARCH_X86_64", "COMPUTE_RESCUE_BFV",
                    *(f"COMPUTE_IMAGE_TYPE_{name}" for name in ("AMI", "ARI", "QCOW2", "RAW", "VDI", "VHD", "VHDX",
                                                                "VMDK"))})
# File that exists while a running guest is paused. A guest that was started paused has the file HOLD instead.
_PAUSED = "paused"
# File that exists while the kernel is stopped for a copy of the disk.
_COPYING = "copying"


def check(instance: Instance) -> None:
    """Raise InvalidInput, which names the property, if the flavor or image requests an unsupported property."""
    wanted = hardware(Properties.of(instance), existing=instance.launched_at is not None)
    missing = required_traits(instance.flavor, instance.image, existing=instance.launched_at is not None) - TRAITS
    reason = next((reason for applies, reason in (
        (instance.flavor.vcpus > 1, f"the flavor has {instance.flavor.vcpus} VCPUs, and User Mode Linux supports one"),
        (bool(instance.kernel_id), "the image has a kernel (kernel_id), and User Mode Linux guests run the kernel of "
                                   "the host"),
        (wanted.iso, "disk_format=iso is not supported by this hypervisor"),
        (wanted.vm_mode not in ("", "uml"), f"hw_vm_mode={wanted.vm_mode} is not supported by this hypervisor"),
        (wanted.hypervisor not in ("", "uml"), f"img_hv_type={wanted.hypervisor} is not supported by this hypervisor"),
        (wanted.architecture not in ("", ARCHITECTURE),
         f"hw_architecture={wanted.architecture} is not supported by this hypervisor"),
        (bool(instance.pci_devices), "devices of the host cannot be assigned to User Mode Linux guests"),
        (bool(instance.usable_shares), "shares are not supported by this hypervisor"),
        (bool(missing), f"the flavor or image requires {', '.join(sorted(missing))}"),
    ) if applies), "")
    if reason:
        raise exception.InvalidInput(reason=reason)


class Guests(LocalGuests):
    """The guests of a host, with their locks, serial ports and users. All roles of the driver share this object."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.locks = GuestLocks()
        self.watcher = Watcher(self.power_state, self.ended)
        self._serial_ports = SerialPorts()
        self._user_lock = threading.Lock()
        self._users: dict[str, int] = {}

    # --- queries -----------------------------------------------------------------------------------
    def definition(self, uuid: str) -> Definition:
        """Return the definition of a guest on this host. Raises GuestNotFound."""
        place = directories.directory(uuid)
        owner = directories.owner(place)
        stored = definition.load(place)
        if stored is None or owner is None or owner.host != self.name:
            raise exception.GuestNotFound(instance_uuid=uuid)
        return stored

    def exists(self, uuid: str) -> bool:
        try:
            self.definition(uuid)
            return True
        except exception.GuestNotFound:
            return False

    def is_running(self, uuid: str) -> bool:
        return self.exists(uuid) and process.is_running(directories.directory(uuid))

    def power_state(self, uuid: str) -> int:
        self.definition(uuid)
        place = directories.directory(uuid)
        if process.is_running(place):
            return states.POWER_PAUSED if self.is_paused(place) else states.RUNNING
        code = files.text_of(os.path.join(place, supervisor.EXIT)) or "0"
        return states.SHUTDOWN if code == "0" else states.CRASHED

    @staticmethod
    def is_paused(place: str) -> bool:
        return any(os.path.exists(os.path.join(place, name)) for name in (supervisor.HOLD, _PAUSED))

    def all(self) -> list[GuestStatus]:
        guests = []
        for _place, stored in definition.all_of_host():
            with contextlib.suppress(exception.GuestNotFound):
                guests.append(GuestStatus(uuid=stored.uuid, power_state=self.power_state(stored.uuid)))
        return guests

    def traces(self) -> set[str]:
        return super().traces() | directories.retained_servers()

    def diagnostics(self, instance: Instance) -> Diagnostics:
        return diagnostics.collect(directories.directory(instance.uuid), self.definition(instance.uuid),
                                   self.power_state(instance.uuid), instance)

    # --- lifecycle ---------------------------------------------------------------------------------
    def stop(self, uuid: str) -> None:
        with contextlib.suppress(exception.GuestNotFound):
            self.power_off(uuid)

    def power_off(self, uuid: str, timeout: float | None = None) -> None:
        """Kill the guest, without a request to shut down. ``timeout``: see GuestLocks.hold. Raises GuestNotFound."""
        with self.locks.hold(uuid, timeout):
            self.definition(uuid)
            self.end(uuid)

    def end(self, uuid: str) -> None:
        """Kill the guest, if it runs, and release its host devices. The caller holds the guest's lock."""
        self.locks.check()
        place = directories.directory(uuid)
        stored = definition.load(place)
        process.kill(place, stored.uid if stored is not None else None)
        files.remove(*(os.path.join(place, name) for name in (supervisor.HOLD, _PAUSED, _COPYING, supervisor.EXIT)))
        self._release(place)

    def ended(self, uuid: str) -> None:
        """Release the host devices of a guest that has ended, unless it runs again."""
        with self.locks.hold(uuid):
            place = directories.directory(uuid)
            if not process.is_running(place):
                self._release(place)

    def _release(self, place: str) -> None:
        stored = definition.load(place)
        if stored is not None:
            taps.remove(stored.nics)
            for disk in stored.disks:
                self.release_volume(place, disk)

    def start(self, instance: Instance, fresh: bool = False, must_exist: bool = False, paused: bool = False,
              rescue: bool = False) -> None:
        """Start the guest, see LocalGuests. ``paused``: stop the kernel before its first instruction. ``rescue``: boot
        from the rescue disk."""
        uuid, place = instance.uuid, directories.directory(instance.uuid)
        with self.locks.hold(uuid, LOCK_TIMEOUT if fresh else None):
            if must_exist:
                self.definition(uuid)
            check(instance)
            if not fresh and self.is_running(uuid):
                if not paused:
                    self.unpause(uuid)
                return
            new = self.definition_of(instance, rescue)
            self.end(uuid)
            self.store(new, place)
            self._take_files(new, place)
            if paused:
                files.replace(os.path.join(place, supervisor.HOLD), "")
            try:
                taps.ensure(new.nics, new.uid)
                process.start(uuid, place, CONF.uml.start_timeout)
            except Exception:
                self.end(uuid)
                raise
            self.watcher.watch(uuid, place)
            LOG.info("[instance: %s] Started the User Mode Linux guest%s", uuid, " from its rescue disk" if rescue
                     else ", held until it is unpaused" if paused else "")

    def definition_of(self, instance: Instance, rescue: bool = False) -> Definition:
        place = directories.directory(instance.uuid)
        previous = definition.load(place)
        serial = None
        if CONF.serial_console.enabled:
            taken = {stored.serial[1] for _place, stored in definition.all_of_host() if stored.serial}
            serial = (CONF.serial_console.proxyclient_address, self._serial_ports.take(1, taken)[0])
        return definition.of_instance(instance, place, previous, self._user(instance.uuid), serial, rescue)

    def store(self, new: Definition, place: str) -> None:
        """Write the definition; this host becomes the owner of the guest's directory."""
        self.locks.check()
        directories.take(new.uuid, self.name)
        new.store(place)
        if not new.rescued:
            directories.remove_files(new.uuid, disks.OF_RESCUE)

    def save(self, changed: Definition, place: str) -> None:
        """Write the changed definition of a guest. The caller holds the guest's lock."""
        self.locks.check()
        changed.store(place)

    def redefine(self, instance: Instance) -> None:
        """Define the guest, stopped. The caller holds the guest's lock."""
        self.store(self.definition_of(instance), directories.directory(instance.uuid))

    def unpause(self, uuid: str) -> None:
        """Continue a paused guest. The caller holds the guest's lock. Raises GuestNotFound."""
        self.definition(uuid)
        place = directories.directory(uuid)
        if os.path.exists(os.path.join(place, _PAUSED)):
            if process.is_running(place):
                process.request(uuid, place, "go")
            files.remove(os.path.join(place, _PAUSED))
        if os.path.exists(os.path.join(place, supervisor.HOLD)):
            files.remove(os.path.join(place, supervisor.HOLD))
            process.resume(place)

    def pause(self, uuid: str) -> None:
        """Stop the kernel of a running guest. The caller holds the guest's lock."""
        place = directories.directory(uuid)
        if self.power_state(uuid) == states.POWER_PAUSED:
            return
        if not process.is_running(place):
            raise exception.InstanceInvalidState(method="pause", instance_uuid=uuid, attr="power_state",
                                                 state="SHUTDOWN")
        process.request(uuid, place, "stop")
        files.replace(os.path.join(place, _PAUSED), "")

    @contextlib.contextmanager
    def stopped_for_copy(self, uuid: str) -> Iterator[None]:
        """Stop the kernel during the block, if it runs. The caller holds the guest's lock."""
        place = directories.directory(uuid)
        if not process.is_running(place) or self.is_paused(place):
            yield
            return
        files.replace(os.path.join(place, _COPYING), "")
        try:
            process.request(uuid, place, "stop")
            yield
        finally:
            self.end_copy(uuid)

    def end_copy(self, uuid: str) -> None:
        """Continue a kernel that was stopped for a copy of its disk, perhaps by a previous nova-compute process. The
        caller holds the guest's lock."""
        place = directories.directory(uuid)
        mark = os.path.join(place, _COPYING)
        if os.path.exists(mark):
            if process.is_running(place) and not self.is_paused(place):
                try:
                    process.request(uuid, place, "go")
                except process.RefusedByKernel as error:
                    LOG.info("[instance: %s] The kernel runs already after a copy of its disk: %s", uuid, error)
            files.remove(mark)

    def shut_down(self, uuid: str, timeout: float, reboot: bool = False) -> bool:
        """Press Ctrl-Alt-Del on the guest's console and wait ``timeout`` seconds, without the guest's lock. Return True
        if the guest stopped or (``reboot``) has restarted. A guest may ignore the key. Raises GuestNotFound."""
        self.definition(uuid)
        place = directories.directory(uuid)
        before = process.kernel_pid(place)
        if before is None:
            return not reboot and not process.is_running(place)
        if timeout <= 0 or self.is_paused(place):
            return False
        mark = os.path.join(place, supervisor.STOP)
        if not reboot:
            files.replace(mark, "")
        try:
            process.request(uuid, place, "cad")
            if reboot:
                return process.wait_for_restart(place, before, timeout)
            return process.wait_for_end(place, timeout)
        except (exception.GuestNotRunning, process.RefusedByKernel):
            return False
        finally:
            files.remove(mark)

    def shut_down_if_present(self, uuid: str, timeout: float) -> None:
        if timeout > 0:
            with contextlib.suppress(exception.GuestNotFound):
                self.shut_down(uuid, timeout)

    def _remove(self, uuid: str, keep_disks: bool) -> None:
        """Stop the guest. Remove its files, unless they are retained or belong to another host."""
        place = directories.directory(uuid)
        with self.locks.hold(uuid, LOCK_TIMEOUT):
            owner = directories.owner(place)
            if owner is not None and owner.host == self.name:
                self.end(uuid)
                directories.remove_files(uuid, (supervisor.DEFINITION, *disks.OF_RESCUE))
            if not keep_disks:
                directories.remove(uuid, self.name)
        with self._user_lock:
            self._users.pop(uuid, None)

    # --- users and files of guests -----------------------------------------------------------------
    def _user(self, uuid: str) -> int | None:
        """Return the user id of the guest, unique while the guest exists; None if this process is not root."""
        if os.geteuid() != 0:
            return None
        with self._user_lock:
            if uuid not in self._users:
                used = {stored.uuid: stored.uid for _place, stored in definition.all_of_host() if stored.uid}
                taken = {*self._users.values(), *(uid for other, uid in used.items() if other != uuid)}
                mine = used.get(uuid)
                self._users[uuid] = mine if mine is not None and mine not in taken else _free_user(taken)
            return self._users[uuid]

    def _take_files(self, new: Definition, place: str) -> None:
        """Make the guest's user the owner of its disks. Raises InvalidDiskInfo, VolumeUnusable."""
        for disk in new.disks:
            if disk.path:
                self.take_volume(place, disk, new.uid)
                continue
            path = os.path.join(place, disk.key)
            if disk.key.endswith(".cow"):
                cow.renew(path)
            if new.uid is not None:
                os.chown(path, new.uid, new.uid)
        if new.ramdisk and new.uid is not None:
            os.chown(os.path.join(place, new.ramdisk), new.uid, new.uid)

    @staticmethod
    def take_volume(place: str, disk: Disk, uid: int | None) -> None:
        """Give the guest access to a volume. Raises VolumeUnusable."""
        link = os.path.join(place, disk.file())
        try:
            files.remove(link)
            os.symlink(disk.path, link)
            if uid is not None:
                os.chown(disk.path, uid, uid)
        except OSError as error:
            LOG.error("[instance: %s] Cannot give the guest access to %s, the operation fails: %s",
                      os.path.basename(place), disk.path, error)
            reason = "the guest cannot get access to it"
            raise exception.VolumeUnusable(volume_id=disk.volume_id, reason=reason) from error

    @staticmethod
    def release_volume(place: str, disk: Disk) -> None:
        """Withdraw the guest's access to a volume. Succeeds if the volume is no longer connected."""
        if not disk.path:
            return
        files.remove(os.path.join(place, disk.file()))
        if os.geteuid() == 0:
            with contextlib.suppress(OSError):
                os.chown(disk.path, 0, 0)


def _free_user(taken: set[int]) -> int:
    first, _, last = str(CONF.uml.user_ids).partition("-")
    try:
        low, high = int(first), int(last or first)
    except ValueError as error:
        raise exception.InvalidInput(reason=f"[uml]user_ids {CONF.uml.user_ids}: not of the form first-last") from error
    if low < 1:
        raise exception.InvalidInput(reason="[uml]user_ids: guests must not run as root")
    # Skip users with processes: those of a former guest or of another nova-compute must not access this guest's files.
    taken = taken | process.users()
    for uid in range(low, high + 1):
        if uid not in taken:
            return uid
    raise exception.NovaException("All user ids for guests ([uml]user_ids) are in use on the host.")


class Role:
    """A role of the driver, which acts on the guests of its host."""

    def __init__(self, guests: Guests) -> None:
        self._guests = guests

    @contextlib.contextmanager
    def _held(self, uuid: str) -> Iterator[str]:
        """Hold the lock of the guest; yield its directory."""
        with self._guests.locks.hold(uuid):
            yield directories.directory(uuid)
