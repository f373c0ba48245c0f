"""One volume takes the place of another in a guest that runs, with all its data; for the guest it is the same disk.

The guest writes to the old volume until all of it has been copied, and to the new one from that moment on: what is done
before it can be undone, and after it there is no way back. Which of both the guest has is known to its host alone, so
that one is asked by the compensation, too, and what is left of the swap is undone or done accordingly.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import msgspec

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import BlockDevice
from nova.objects.volume import VolumeEncryption
from nova.operations.base import CONDUCTOR, VOLUMES, NoRequest, Operation, Rules, Step, connects_volumes, step
from nova.operations.contexts import Acceptance, Control, Desk, Host

# Seconds; a volume may be large.
_DEADLINE = 7 * 86400.0


class SwapRequest(Object, kw_only=True):
    """``delete_on_termination``: what becomes of either with the server; None: as it is."""

    volume_id: str
    new_volume_id: str
    delete_on_termination: bool | None = None


class SwapData(Object, kw_only=True):
    """``device`` gets the volume of ``new``, which is not shown until then.

    ``outside_volumes``: an outside service keeps both. ``migrates``: it has asked for the swap, and the volume keeps
    its id. ``swapped``: the guest has the new one. ``encryption``: that one is encrypted.
    """

    host: str = ""
    device: BlockDevice | None = None
    new: BlockDevice | None = None
    outside_volumes: bool = False
    migrates: bool = False
    swapped: bool = False
    encryption: VolumeEncryption | None = None


class SwapVolume(Operation):
    name = action = "swap_volume"
    rules = Rules(label="swap_volume", vm_states=frozenset({states.ACTIVE, states.PAUSED, states.RESIZED}),
                  host="needed", beside=True, release=4)
    request_type = SwapRequest
    answer_type = NoRequest
    data_type = SwapData
    kind = "swap"  # hours of copying hold up no snapshots
    point_of_no_return = "swap"

    @property
    def owes_an_end(self) -> bool:
        return bool(self.data.migrates)

    # --- acceptance ------------------------------------------------------------------------------
    def prepare(self, desk: Desk, request: SwapRequest) -> None:
        with _new_volume():
            self.data.migrates = desk.check_swap(request.volume_id, request.new_volume_id)
            old = self.instance.volume(request.volume_id)
            if old is not None:
                self.data.encryption = desk.key_of_successor(old, request.new_volume_id)

    def accept(self, ctl: Acceptance, request: SwapRequest) -> None:
        old = self.instance.attached(request.volume_id)
        if request.delete_on_termination is not None:
            changed = msgspec.structs.replace(old, delete_on_termination=request.delete_on_termination)
            ctl.set(block_devices=[changed if each is old else each for each in ctl.instance.block_devices])
            old = changed
        self.data.device = old
        with _new_volume():
            self.data.new = ctl.begin_swap(old, request.new_volume_id, self.data.encryption)
        self.data.outside_volumes = ctl.has_outside_volumes()

    # --- steps -----------------------------------------------------------------------------------
    @step(CONDUCTOR, undo="give_back", external=VOLUMES, when="outside_volumes")
    def take(self, ctl: Control) -> None:
        """The server may have moved, or lost the volume, while this waited."""
        old = ctl.instance.attached_now(self.data.device)
        self.data.device = old
        self.data.new = ctl.outside_volumes.begin_swap(self.data.host, self.data.device, self.data.new)

    @step("host", event="compute_swap_volume", undo="look", when_down="wait", deadline=_DEADLINE,
          results=("swapped",), undo_results=("swapped",))
    @connects_volumes
    def swap(self, host: Host) -> None:
        host.driver.swap_volume(host.instance, self.data.device, host.connected(self._swapped()), host.cancelled)
        self._let_go(host, True)

    # Compensated by being done: the guest has the new volume.
    @step(CONDUCTOR, event="compute_swap_volume", undo="hand_over", external=VOLUMES, when="outside_volumes")
    def hand_over(self, ctl: Control) -> None:
        ctl.outside_volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=True)

    # --- compensations ---------------------------------------------------------------------------
    @connects_volumes
    def look(self, host: Host) -> None:
        new = self._swapped()
        with contextlib.suppress(exception.VolumeUnusable):  # then no guest here has it
            new = host.connected(new)
        self._let_go(host, host.driver.cancel_swap(host.instance, self.data.device, new))

    def give_back(self, ctl: Control) -> None:
        ctl.outside_volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=self.data.swapped)

    def take_back(self, of: Step, ctl: Control) -> None:
        # A volume that was attached since is found outside by the same ids.
        if of.name == "hand_over" or self.data.new.volume_id not in {each.volume_id for each in ctl.instance.volumes}:
            super().take_back(of, ctl)

    def _swapped(self) -> BlockDevice:
        """The device as it is when this has succeeded."""
        device: BlockDevice = self.data.device
        return device.swapped(self.data.new, self.data.migrates)

    def _let_go(self, host: Host, swapped: bool) -> None:
        """Of the volume that the guest has not (any more)."""
        unused = self.data.device if swapped else self.data.new
        host.volumes.disconnect(unused.connection_info)
        host.result(swapped=swapped)

    # --- the end ---------------------------------------------------------------------------------
    def succeeded(self, ctl: Control) -> None:
        ctl.volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=True)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        ctl.volumes.end_swap(self.data.device, self.data.new, self.data.migrates, done=self.data.swapped)


@contextlib.contextmanager
def _new_volume() -> Iterator[None]:
    """The one of the URL is there; the other one is what was asked for."""
    try:
        yield
    except exception.VolumeNotFound as error:
        raise exception.InvalidInput(reason=f"volumeId: {error.message}") from error
