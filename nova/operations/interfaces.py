"""Attaching and detaching interfaces: beside whatever else is done to the server, one after the other.

An interface and its addresses are the server's from the moment in which attaching was accepted, until detaching it is
done. A host that is away is waited for: what it has done is not known.
"""

from __future__ import annotations

from nova import exception
from nova.objects import states
from nova.objects.action import Failure
from nova.objects.base import Object
from nova.objects.instance import Instance
from nova.objects.network import VIF, NetworkRequest
from nova.operations import on_host, plugging
from nova.operations.base import CONDUCTOR, NETWORK, NoRequest, Operation, Rules, step
from nova.operations.contexts import Acceptance, Control, Desk, Host

_STATES = frozenset({states.ACTIVE, states.PAUSED, states.STOPPED})
# Those in which a server has a guest with interfaces, or may have one.
_ANY = _STATES | {states.BUILDING, states.SUSPENDED, states.RESCUED, states.RESIZED, states.SOFT_DELETED, states.ERROR,
                  states.SHELVED}


class AttachInterfaceRequest(Object, kw_only=True):
    """On which network (None: the project's only one), with which address."""

    network_id: str | None = None
    port_id: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class DetachInterfaceRequest(Object, kw_only=True):
    port_id: str


class InterfaceData(Object, kw_only=True):
    """``wanted``: what the interface was asked to be; ``vif``: what it is, as the server's row has it.

    ``plugs``: its id, where the back end tells when it is plugged. ``outside_interfaces``: an outside service makes it.
    ``port_id``: the one that was asked for.
    """

    host: str = ""
    wanted: NetworkRequest | None = None
    vif: VIF | None = None
    plugs: list[str] = []
    outside_interfaces: bool = False
    port_id: str | None = None


class _Interface(Operation):
    """What both do on the host."""

    data_type = InterfaceData

    def plug(self, host: Host) -> None:
        host.network.plug_vif(host.instance, self.data.vif, host.rules)
        host.driver.attach_interface(host.instance, self.data.vif)
        on_host.report_devices(host)

    def unplug(self, host: Host) -> None:
        host.driver.detach_interface(host.instance, self.data.vif)
        host.network.unplug_vif(host.instance, self.data.vif)


class AttachInterface(_Interface):
    name = action = "attach_interface"
    rules = Rules(label="attach_interface", vm_states=_STATES, host="needed", beside=True)
    request_type = AttachInterfaceRequest
    answer_type = VIF

    def prepare(self, desk: Desk, request: AttachInterfaceRequest) -> None:
        self.data.wanted = desk.choose_network(NetworkRequest(
            network_id=request.network_id, port_id=request.port_id, fixed_ip=request.fixed_ip, tag=request.tag))

    def accept(self, ctl: Acceptance, request: AttachInterfaceRequest) -> VIF:
        """An interface without an id is still to be made by an outside service."""
        if ctl.network_is_outside:
            self.data.outside_interfaces = True
            return VIF(id="", network_id=self.data.wanted.network_id or "", label="", mac="", devname="")
        vif = ctl.add_interface(self.data.wanted)
        self.data.vif, self.data.plugs = vif, plugging.awaited([vif])
        return vif

    @step(CONDUCTOR, event="compute_attach_interface", undo="give_back", external=NETWORK, when="outside_interfaces")
    def make(self, ctl: Control) -> None:
        self.data.vif = ctl.outside_interfaces.add(self.data.wanted, self.data.host)
        self.data.plugs = plugging.awaited([self.data.vif])

    @step("host", event="compute_attach_interface", undo="take_away", when_down="wait")
    def attach(self, host: Host) -> None:
        self.plug(host)

    @step(CONDUCTOR, event="compute_attach_interface", when="plugs")
    def plugged(self, ctl: Control) -> None:
        plugging.wait(ctl, self.data.plugs)

    def take_away(self, host: Host) -> None:
        self.unplug(host)

    def give_back(self, ctl: Control) -> None:
        if self.data.vif is not None:
            ctl.outside_interfaces.release(self.data.vif)
        else:
            ctl.outside_interfaces.give_back(self.data.wanted)

    def succeeded(self, ctl: Control) -> None:
        if not self.data.plugs:
            ctl.interfaces.complete(self.data.vif.id)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        if self.data.vif is not None:
            ctl.interfaces.release(self.data.vif)


class DetachInterface(_Interface):
    name = action = "detach_interface"
    rules = Rules(label="detach_interface", vm_states=_STATES, host="needed", beside=True)
    request_type = DetachInterfaceRequest
    answer_type = NoRequest

    @property
    def is_needed(self) -> bool:
        """Whether a server that has no such interface has nothing to be detached from."""
        return True

    def vif_of(self, instance: Instance) -> VIF | None:
        """The interface that was asked for, as the server has it."""
        return next((vif for vif in instance.network_info if vif.id == self.data.port_id), None)

    def accept(self, ctl: Acceptance, request: DetachInterfaceRequest) -> None:
        self.data.vif = self.vif_of(self.instance)
        if self.data.vif is None and self.is_needed:
            raise exception.PortNotFound(port_id=request.port_id)
        self.data.outside_interfaces = ctl.network_is_outside

    @step("host", event="compute_detach_interface", undo="put_back", when_down="wait")
    def detach(self, host: Host) -> None:
        self.unplug(host)

    @step(CONDUCTOR, event="compute_detach_interface", external=NETWORK, when="outside_interfaces")
    def give_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.release(self.data.vif)

    def put_back(self, host: Host) -> None:
        # Somebody else may have taken it away while this waited for its turn.
        if any(vif.id == self.data.vif.id for vif in host.instance.network_info):
            self.plug(host)

    def succeeded(self, ctl: Control) -> None:
        ctl.interfaces.release(self.data.vif)


class LoseInterface(DetachInterface):
    """The port was deleted by its owner: whatever the server is, or is doing, it does not keep the interface.

    It waits behind what is being done, also behind the build that is about to take the port. What supersedes it finds
    the server without the interface.
    """

    name = "lose_interface"
    action = "detach_interface"
    rules = Rules(label="detach_interface", vm_states=_ANY, task_states=None, lock=False, launched=False, beside=True)

    @property
    def is_needed(self) -> bool:
        return self.instance.vm_state != states.BUILDING  # which may have it later

    @step(CONDUCTOR)
    def look(self, ctl: Control) -> None:
        """The server may have moved while this waited, or have been built with the interface, or without it."""
        self.data.vif = self.vif_of(ctl.instance) or self.data.vif
        self.data.host = ctl.instance.host or "" if self.data.vif else ""
        self.data.outside_interfaces &= self.data.vif is not None

    @step("host", event="compute_detach_interface", when_down="wait")
    def detach(self, host: Host) -> None:
        super().detach(host)

    @step(CONDUCTOR, event="compute_detach_interface", external=NETWORK, when="outside_interfaces")
    def give_back(self, ctl: Control) -> None:
        super().give_back(ctl)

    def succeeded(self, ctl: Control) -> None:
        self.superseded(ctl)

    def failed(self, ctl: Control, failure: Failure) -> None:
        super().failed(ctl, failure)
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        if self.data.vif is not None:
            ctl.interfaces.release(self.data.vif)
