"""Attach and detach interfaces. These operations queue behind the running operation of the server.

The server owns an interface and its addresses from the acceptance of the attach until the end of the detach. The steps
wait for a host that is down, because its progress is unknown."""

from nova import exception
from nova.objects.base import Object
from nova.objects.networks.network import VIF, NetworkRequest
from nova.objects.servers import states
from nova.objects.servers.instance import Instance
from nova.operations.framework import on_host, plugging
from nova.operations.framework.base import CONDUCTOR, NETWORK, NoRequest, Releasing, step
from nova.operations.framework.contexts import Acceptance, Control, HostContext, PrecheckContext
from nova.operations.framework.rules import Rules

_STATES = frozenset({states.ACTIVE, states.PAUSED, states.STOPPED})
# States in which a server has, or may have, a guest with interfaces.
_ANY = _STATES | {states.BUILDING, states.SUSPENDED, states.RESCUED, states.RESIZED, states.SOFT_DELETED, states.ERROR,
                  states.SHELVED}


class AttachInterfaceRequest(Object, kw_only=True):
    """The network (None: the project's only network), port and address of the new interface."""

    network_id: str | None = None
    port_id: str | None = None
    fixed_ip: str | None = None
    tag: str | None = None


class DetachInterfaceRequest(Object, kw_only=True):
    port_id: str


class InterfaceData(Object, kw_only=True):
    """``wanted``: the requested interface; ``vif``: the interface as stored in the server's row. ``plugs``: the id of
    the interface if the back end reports when it is plugged. ``outside_interfaces``: an external service creates the
    interface. ``port_id``: the requested port."""

    host: str = ""
    wanted: NetworkRequest | None = None
    vif: VIF | None = None
    plugs: list[str] = []
    outside_interfaces: bool = False
    port_id: str | None = None


class _Interface(Releasing):
    """Common host actions of attach and detach."""

    data_type = InterfaceData

    def plug(self, host: HostContext) -> None:
        host.network.plug_vif(host.instance, self.data.vif, host.rules)
        host.driver.interfaces.attach(host.instance, self.data.vif)
        on_host.report_devices(host)

    def unplug(self, host: HostContext) -> None:
        host.driver.interfaces.detach(host.instance, self.data.vif)
        host.network.unplug_vif(host.instance, self.data.vif)


class AttachInterface(_Interface):
    name = action = "attach_interface"
    rules = Rules(label="attach_interface", vm_states=_STATES, host="needed", beside=True)
    request_type = AttachInterfaceRequest
    answer_type = VIF

    def prepare(self, precheck: PrecheckContext, request: AttachInterfaceRequest) -> None:
        self.data.wanted = precheck.choose_network(NetworkRequest(
            network_id=request.network_id, port_id=request.port_id, fixed_ip=request.fixed_ip, tag=request.tag))

    def accept(self, ctl: Acceptance, request: AttachInterfaceRequest) -> VIF:
        """Accept an interface. It has no id yet if an external service is to create it."""
        if ctl.network_is_outside:
            self.data.outside_interfaces = True
            return VIF(id="", network_id=self.data.wanted.network_id or "", label="", mac="", devname="")
        vif = ctl.interfaces.add(self.data.wanted, self.instance.host or "")
        self.data.vif, self.data.plugs = vif, plugging.awaited([vif])
        return vif

    @step(CONDUCTOR, event="compute_attach_interface", undo="give_back", external=NETWORK, when="outside_interfaces")
    def make(self, ctl: Control) -> None:
        self.data.vif = ctl.outside_interfaces.add(self.data.wanted, self.data.host)
        self.data.plugs = plugging.awaited([self.data.vif])

    @step("host", event="compute_attach_interface", undo="unplug", when_down="wait")
    def attach(self, host: HostContext) -> None:
        self.plug(host)

    @step(CONDUCTOR, event="compute_attach_interface", when="plugs")
    def plugged(self, ctl: Control) -> None:
        plugging.wait(ctl, self.data.plugs)

    def give_back(self, ctl: Control) -> None:
        if self.data.vif is not None:
            ctl.outside_interfaces.release(self.data.vif)
        else:
            ctl.outside_interfaces.give_back(self.data.wanted)

    def succeeded(self, ctl: Control) -> None:
        if not self.data.plugs:
            ctl.interfaces.complete(self.data.vif.id)

    def superseded(self, ctl: Control) -> None:
        if self.data.vif is not None:
            ctl.interfaces.release(self.data.vif)


class DetachInterface(_Interface):
    name = action = "detach_interface"
    rules = Rules(label="detach_interface", vm_states=_STATES, host="needed", beside=True)
    request_type = DetachInterfaceRequest
    answer_type = NoRequest

    def vif_of(self, instance: Instance) -> VIF | None:
        """Return the interface to detach as stored with the instance, or None if it is not attached."""
        return next((vif for vif in instance.network_info if vif.id == self.data.port_id), None)

    def accept(self, ctl: Acceptance, request: DetachInterfaceRequest) -> None:
        self.data.vif = self.vif_of(self.instance)
        if self.data.vif is None and self.instance.vm_state != states.BUILDING:  # the build may still add it
            raise exception.PortNotFound(port_id=request.port_id)
        self.data.outside_interfaces = ctl.network_is_outside

    @step("host", event="compute_detach_interface", undo="put_back", when_down="wait")
    def detach(self, host: HostContext) -> None:
        self.unplug(host)

    @step(CONDUCTOR, event="compute_detach_interface", external=NETWORK, when="outside_interfaces")
    def give_back(self, ctl: Control) -> None:
        ctl.outside_interfaces.release(self.data.vif)

    def put_back(self, host: HostContext) -> None:
        # Another operation may have detached the interface while this one was queued.
        if any(vif.id == self.data.vif.id for vif in host.instance.network_info):
            self.plug(host)

    def succeeded(self, ctl: Control) -> None:
        ctl.interfaces.release(self.data.vif)


class LoseInterface(DetachInterface):
    """Detach an interface whose port was deleted by its owner, in any state of the server. Queues behind the running
    operation, also behind a build that is about to use the port. An operation that supersedes this one finds the server
    without the interface. After a reset of the state or a soft delete, the detachment runs again."""

    name, action = "lose_interface", "detach_interface"
    rules = Rules(label="detach_interface", vm_states=_ANY, task_states=None, lock=False, launched=False, beside=True,
                  repeated=True)

    @step(CONDUCTOR, journaled_as="look")
    def find_interface(self, ctl: Control) -> None:
        """Find host and interface again: the server may have moved or been built while the operation was queued."""
        self.data.vif = self.vif_of(ctl.instance) or self.data.vif
        self.data.host = ctl.instance.host or "" if self.data.vif else ""
        self.data.outside_interfaces &= self.data.vif is not None

    @step("host", event="compute_detach_interface", when_down="wait")
    def detach(self, host: HostContext) -> None:
        super().detach(host)

    give_back = DetachInterface.give_back

    def succeeded(self, ctl: Control) -> None:
        self.superseded(ctl)

    def superseded(self, ctl: Control) -> None:
        if self.data.vif is not None:
            ctl.interfaces.release(self.data.vif)
