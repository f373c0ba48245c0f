"""The notifications of each operation. An event with phases covers a span of steps. Its start notification is emitted
when the first order of the span is sent, and its end or error notification when the end of the last step is
recorded."""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova.notifications import versioned
from nova.objects.accounts.flavor import Flavor
from nova.objects.servers.instance import Instance

# Returns fields of the payload that are specific to an event, from the data of the operation and the server.
Fields = Callable[[Any, Instance], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class PhasedEvent:
    """An event that covers the steps ``first`` to ``last`` ("": to the end of the operation).

    ``at``: the field of the operation's data with the host of the publisher. ``fails``: True if the event has an error
    phase; otherwise a failure emits no notification. ``when``: a field of the data that must be true. ``undo``: True
    for the compensations of the steps, in reverse order. ``binary``: the publisher if a host executes the steps;
    ``local``: the publisher otherwise."""

    event: str
    first: str
    last: str = ""
    at: str = "host"
    fails: bool = False
    when: str = ""
    undo: bool = False
    local: str = ""
    binary: str = "nova-compute"
    fields: Fields | None = None


@dataclasses.dataclass(frozen=True)
class SingleEvent:
    """An event without phases, published by ``binary`` after the step ``after`` ("": after acceptance)."""

    event: str
    binary: str
    after: str = ""
    when: str = ""


def _volume(data: Any, _instance: Instance) -> dict[str, Any]:
    return {"volume_id": data.device.volume_id}


def _share(data: Any, _instance: Instance) -> dict[str, Any]:
    return {"share_id": data.mapping.share_id}


def _new_flavor(data: Any, instance: Instance) -> dict[str, Any]:
    new: Flavor = data.flavor or instance.flavor
    return {"new_flavor": versioned.flavor(new)}


def _phased(event: str, first: str = "", last: str = "", **more: Any) -> tuple[PhasedEvent]:
    """Return one event that covers these steps, by default the step with the name of the event."""
    return (PhasedEvent(event, first or event, last if first else event, **more),)


_RESIZE = (PhasedEvent("resize_prep", "place", "place", fields=_new_flavor),
           PhasedEvent("resize", "move_out", "move_out", at="source", fails=True),
           PhasedEvent("resize_finish", "receive"))
_SNAPSHOT = (PhasedEvent("snapshot", "capture", "upload", fields=lambda data, _instance: {
    "snapshot_image_id": data.image.id}),)

# Operation -> events with phases. An event that contains another event comes before it.
PHASED_EVENTS: Mapping[str, Sequence[PhasedEvent]] = {
    "build": (PhasedEvent("create", "network", fails=True),),
    "delete": (PhasedEvent("delete", "destroy", local="nova-api"), PhasedEvent("shutdown", "destroy", "destroy_other")),
    "reclaim": (PhasedEvent("delete", "destroy", local="nova-api"), PhasedEvent("shutdown", "destroy", "destroy")),
    "soft_delete": _phased("soft_delete", "power_off", "power_off"),
    "restore": _phased("restore", "power_on", "power_on"),
    "start": _phased("power_on"), "stop": _phased("power_off"),
    "sync_power": _phased("power_off", "settle", "settle"),
    **dict.fromkeys(("reboot_soft", "reboot_hard"), _phased("reboot", fails=True)),
    **{name: _phased(name) for name in ("pause", "unpause", "suspend", "resume", "unrescue")},
    "trigger_crash_dump": _phased("trigger_crash_dump", "trigger", "trigger"),
    "rescue": _phased("rescue", fields=lambda data, instance: {
        "rescue_image_ref": data.image.id if data.image else instance.image_ref}),
    "rebuild": _phased("rebuild", "let_go", fails=True),
    "evacuate": _phased("rebuild", "look", fails=True),
    "create_image": _SNAPSHOT, "create_backup": _SNAPSHOT,
    "shelve": (PhasedEvent("shelve", "halt", "settle"), PhasedEvent("shelve_offload", "destroy", when="offload")),
    "shelve_offload": _phased("shelve_offload", "destroy", when="offload"),
    "unshelve": (PhasedEvent("unshelve", "network", when="offloaded"),
                 PhasedEvent("power_on", "power_on", when="on_host")),
    "resize": _RESIZE, "migrate": _RESIZE,
    "confirm_resize": _phased("resize_confirm", "forget", at="source"),
    "revert_resize": _phased("resize_revert", "drop"),
    "live_migrate": (
        PhasedEvent("live_migration_pre", "make_room", "make_room"),
        PhasedEvent("live_migration_post", "arrive_there", "clean", at="source"),
        PhasedEvent("live_migration_post_dest", "finish", "finish"),
        PhasedEvent("live_migration_rollback", "describe", "make_room", at="source", undo=True),
        PhasedEvent("live_migration_rollback_dest", "make_room", "make_room", undo=True)),
    "attach_volume": _phased("volume_attach", "take", fails=True, when="host", fields=_volume),
    "detach_volume": _phased("volume_detach", "begin_outside", when="host", fields=_volume),
    "swap_volume": _phased("volume_swap", "take", fails=True, when="host", fields=lambda data, _instance: {
        "old_volume_id": data.device.volume_id, "new_volume_id": data.new.volume_id}),
    "attach_share": _phased("share_attach", "allow", fails=True, when="host", binary="nova-api", fields=_share),
    "detach_share": _phased("share_detach", "leave", fails=True, when="host", binary="nova-api", fields=_share),
    "attach_interface": _phased("interface_attach", "make", fails=True, when="host"),
    **dict.fromkeys(("detach_interface", "lose_interface"), _phased("interface_detach", "detach", when="host")),
}

_EXISTS = SingleEvent("exists", "nova-compute")  # the usage of a server before the operation changes it

# Operation -> events without phases.
SINGLE_EVENTS: Mapping[str, Sequence[SingleEvent]] = {
    "resize": (_EXISTS,), "migrate": (_EXISTS,),
    "evacuate": (SingleEvent("evacuate", "nova-api"), _EXISTS,
                 SingleEvent("rebuild_scheduled", "nova-conductor", "place")),
    "rebuild": (_EXISTS, SingleEvent("rebuild_scheduled", "nova-conductor", "check", when="spec"),),
}

# Operation -> NAME in the event compute_task.NAME.error, if no host was found.
NO_HOST_TASKS: Mapping[str, str] = {
    "build": "build_instances", "resize": "migrate_server", "migrate": "migrate_server",
    "live_migrate": "migrate_server", "rebuild": "rebuild_server", "evacuate": "rebuild_server",
}
# Operations whose servers are in the state ERROR if no host was found.
FATAL_WITHOUT_HOST = frozenset({"build", "rebuild"})
