"""Swap volume: replace a volume of a running guest by another one with the same data; the guest sees the same disk.

The guest writes to the old volume until all data is copied, and from then on to the new one. The swap can be undone
before that moment, but not after it. Only the host knows which volume the guest uses, so the compensation checks that
on the host and undoes or completes the swap accordingly."""

import contextlib
from collections.abc import Iterator

import msgspec

from nova import exception
from nova.objects.base import Object, new_uuid
from nova.objects.servers import states
from nova.objects.servers.instance import BlockDevice
from nova.objects.volumes.volume import VolumeEncryption
from nova.operations.framework.base import CONDUCTOR, VOLUMES, NoRequest, Releasing, Step, connects_volumes, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext, PrecheckContext
from nova.operations.framework.rules import Rules

# Seconds after which the step on the host fails. A volume may be large.
_DEADLINE = 7 * 86400.0


class SwapRequest(Object, kw_only=True):
    """``delete_on_termination``: new value for the volume; None: unchanged."""

    volume_id: str
    new_volume_id: str
    delete_on_termination: bool | None = None


class SwapData(Object, kw_only=True):
    """``device`` gets the volume of ``new`` at the end; the API does not show ``new``. ``outside_volumes``: an external
    service manages both volumes. ``migrates``: that service requested the swap, and the volume keeps its id.
    ``swapped``: the guest uses the new volume. ``encryption``: of the new volume."""

    host: str = ""
    device: BlockDevice | None = None
    new: BlockDevice | None = None
    outside_volumes: bool = False
    migrates: bool = False
    swapped: bool = False
    encryption: VolumeEncryption | None = None


class SwapVolume(Releasing):
    name = action = "swap_volume"
    rules = Rules(label="swap_volume", vm_states=frozenset({states.ACTIVE, states.PAUSED, states.RESIZED}),
                  host="needed", beside=True, release=4)
    request_type = SwapRequest
    answer_type = NoRequest
    data_type = SwapData
    kind = "swap"  # may take hours, and must not occupy the threads of snapshots
    point_of_no_return = "swap"

    @property
    def service_awaits_end(self) -> bool:
        return bool(self.data.migrates)

    def prepare(self, precheck: PrecheckContext, request: SwapRequest) -> None:
        with _new_volume():
            self.data.migrates = precheck.check_swap(request.volume_id, request.new_volume_id)
            old = self.instance.volume(request.volume_id)
            if old is not None:
                self.data.encryption = precheck.key_of_successor(old, request.new_volume_id)

    def accept(self, ctl: Acceptance, request: SwapRequest) -> None:
        old = self.instance.attached(request.volume_id)
        if request.delete_on_termination is not None:
            changed = msgspec.structs.replace(old, delete_on_termination=request.delete_on_termination)
            ctl.set(block_devices=[changed if device is old else device for device in ctl.instance.block_devices])
            old = changed
        self.data.device = old
        with _new_volume():
            self.data.new = ctl.volumes.begin_swap(self.instance.host or "", old, BlockDevice(
                source="volume", destination="volume", volume_id=request.new_volume_id, device_name=old.device_name,
                uuid=new_uuid(), replaces=old.uuid, delete_on_termination=False, encryption=self.data.encryption))
        self.data.outside_volumes = ctl.volumes.are_outside

    @step(CONDUCTOR, undo="give_back", external=VOLUMES, when="outside_volumes")
    def take(self, ctl: Control) -> None:
        """Reserve the new volume. The server may have moved or detached the old one while the operation was queued."""
        self.data.device = ctl.instance.attached_now(self.data.device)
        self.data.new = ctl.outside_volumes.begin_swap(self.data.host, self.data.device, self.data.new)

    @step("host", event="compute_swap_volume", undo="check_swapped", when_down="wait", deadline=_DEADLINE,
          results=("swapped",), undo_results=("swapped",))
    @connects_volumes
    def swap(self, host: HostContext) -> None:
        host.driver.volume_swaps.swap(host.instance, self.data.device, host.connected(self._swapped()), host.cancelled)
        self._disconnect_unused(host, True)

    # The compensation does the same as the step, because the guest already uses the new volume.
    @step(CONDUCTOR, event="compute_swap_volume", undo="hand_over", external=VOLUMES, when="outside_volumes")
    def hand_over(self, ctl: Control) -> None:
        ctl.outside_volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=True)

    @connects_volumes
    def check_swapped(self, host: HostContext) -> None:
        new = self._swapped()
        with contextlib.suppress(exception.VolumeUnusable):  # no guest on this host uses a volume that is unusable here
            new = host.connected(new)
        self._disconnect_unused(host, host.driver.volume_swaps.cancel(host.instance, new))

    def give_back(self, ctl: Control) -> None:
        ctl.outside_volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=self.data.swapped)

    def clean_up(self, of: Step, ctl: Control) -> None:
        # If the new volume was attached to the server again, Cinder's attachment of server and volume is in use.
        volume_ids = {volume.volume_id for volume in ctl.instance.volumes}
        if of.name == "hand_over" or self.data.new.volume_id not in volume_ids:
            super().clean_up(of, ctl)

    def _swapped(self) -> BlockDevice:
        """Return the device as it is after success."""
        device: BlockDevice = self.data.device
        return device.swapped(self.data.new, self.data.migrates)

    def _disconnect_unused(self, host: HostContext, swapped: bool) -> None:
        host.volumes.disconnect((self.data.device if swapped else self.data.new).connection_info)
        host.result(swapped=swapped)

    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=True)

    def superseded(self, ctl: Control) -> None:
        ctl.volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=self.data.swapped)


@contextlib.contextmanager
def _new_volume() -> Iterator[None]:
    """Report a missing new volume as InvalidInput: the request names it in its body, not in its URL."""
    try:
        yield
    except exception.VolumeNotFound as error:
        raise exception.InvalidInput(reason=f"volumeId: {error.message}") from error
