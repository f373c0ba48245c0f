"""Which parts of which operations are told, as which events: a start when the first order of a part is given, an end
or an error when its end is written.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from nova.notifications import versioned
from nova.objects.flavor import Flavor
from nova.objects.instance import Instance

# The fields of an event's own payload, from the operation's data and the server.
Fields = Callable[[Any, Instance], dict[str, Any]]


@dataclasses.dataclass(frozen=True)
class Part:
    """The steps ``first`` to ``last`` ("": to the end of the operation) are one ``event``.

    ``at``: the field of the data with the host whose nova-compute tells it. ``fails``: it has an error phase; one
    without ends in silence. ``when``: the field of the data without which it is not told. ``undo``: the compensations
    of these steps, the last one first. ``local``: the binary that tells it where no host was asked;
    ``binary``: which one tells it on a host.
    """

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
class Moment:
    """``event`` is told by ``binary`` when the step ``after`` is done ("": when the operation is accepted)."""

    event: str
    binary: str
    after: str = ""
    when: str = ""


def _volume(data: Any, _instance: Instance) -> dict[str, Any]:
    return {"volume_id": data.device.volume_id}


def _swap(data: Any, _instance: Instance) -> dict[str, Any]:
    return {"old_volume_id": data.device.volume_id, "new_volume_id": data.new.volume_id}


def _share(data: Any, _instance: Instance) -> dict[str, Any]:
    return {"share_id": data.mapping.share_id}


def _snapshot(data: Any, _instance: Instance) -> dict[str, Any]:
    return {"snapshot_image_id": data.image.id}


def _rescue(data: Any, instance: Instance) -> dict[str, Any]:
    return {"rescue_image_ref": data.image.id if data.image else instance.image_ref}


def _new_flavor(data: Any, instance: Instance) -> dict[str, Any]:
    new: Flavor = data.flavor or instance.flavor
    return {"new_flavor": versioned.flavor(new)}


def _one(event: str, first: str = "", last: str = "", **more: Any) -> tuple[Part]:
    """An operation with one part, of these steps or of the one that is called as the event."""
    return (Part(event, first or event, last if first else event, **more),)


_DELETE = (Part("delete", "destroy", local="nova-api"), Part("shutdown", "destroy", "destroy_other"))
_RECLAIM = (Part("delete", "destroy", local="nova-api"), Part("shutdown", "destroy", "destroy"))
_RESIZE = (Part("resize_prep", "place", "place", fields=_new_flavor),
           Part("resize", "move_out", "move_out", at="source", fails=True), Part("resize_finish", "receive"))
_SNAPSHOT = (Part("snapshot", "capture", "upload", fields=_snapshot),)

# operation -> its parts, of nested ones the outer first.
PARTS: Mapping[str, Sequence[Part]] = {
    "build": (Part("create", "network", fails=True),),
    "delete": _DELETE,
    "reclaim": _RECLAIM,
    "soft_delete": _one("soft_delete", "power_off", "power_off"),
    "restore": _one("restore", "power_on", "power_on"),
    "start": _one("power_on"),
    "stop": _one("power_off"),
    "sync_power": _one("power_off", "settle", "settle"),
    "reboot_soft": _one("reboot", fails=True),
    "reboot_hard": _one("reboot", fails=True),
    "pause": _one("pause"),
    "unpause": _one("unpause"),
    "suspend": _one("suspend"),
    "resume": _one("resume"),
    "trigger_crash_dump": _one("trigger_crash_dump", "trigger", "trigger"),
    "rescue": _one("rescue", fields=_rescue),
    "unrescue": _one("unrescue"),
    "rebuild": _one("rebuild", "let_go", fails=True),
    "evacuate": _one("rebuild", "look", fails=True),
    "create_image": _SNAPSHOT,
    "create_backup": _SNAPSHOT,
    "shelve": (Part("shelve", "halt", "settle"), Part("shelve_offload", "destroy", when="offload")),
    "shelve_offload": _one("shelve_offload", "destroy", when="offload"),
    "unshelve": (Part("unshelve", "network", when="offloaded"), Part("power_on", "power_on", when="on_host")),
    "resize": _RESIZE,
    "migrate": _RESIZE,
    "confirm_resize": _one("resize_confirm", "forget", at="source"),
    "revert_resize": _one("resize_revert", "drop"),
    "live_migrate": (
        Part("live_migration_pre", "make_room", "make_room"),
        Part("live_migration_post", "arrive_there", "clean", at="source"),
        Part("live_migration_post_dest", "finish", "finish"),
        Part("live_migration_rollback", "describe", "make_room", at="source", undo=True),
        Part("live_migration_rollback_dest", "make_room", "make_room", undo=True)),
    "attach_volume": _one("volume_attach", "take", fails=True, when="host", fields=_volume),
    "detach_volume": _one("volume_detach", "begin_outside", when="host", fields=_volume),
    "swap_volume": _one("volume_swap", "take", fails=True, when="host", fields=_swap),
    "attach_share": _one("share_attach", "allow", fails=True, when="host", binary="nova-api", fields=_share),
    "detach_share": _one("share_detach", "leave", fails=True, when="host", binary="nova-api", fields=_share),
    "attach_interface": _one("interface_attach", "make", fails=True, when="host"),
    "detach_interface": _one("interface_detach", "detach", when="host"),
    "lose_interface": _one("interface_detach", "detach", when="host"),
}

# How a server was used before it becomes another one.
_EXISTED = Moment("exists", "nova-compute")

MOMENTS: Mapping[str, Sequence[Moment]] = {
    "resize": (_EXISTED,),
    "migrate": (_EXISTED,),
    "evacuate": (Moment("evacuate", "nova-api"), _EXISTED, Moment("rebuild_scheduled", "nova-conductor", "place")),
    "rebuild": (_EXISTED, Moment("rebuild_scheduled", "nova-conductor", "check", when="spec"),),
}

# operation -> what it is called when it found no host (compute_task.NAME.error), and those whose servers are lost then.
UNPLACED: Mapping[str, str] = {
    "build": "build_instances", "resize": "migrate_server", "migrate": "migrate_server",
    "live_migrate": "migrate_server", "rebuild": "rebuild_server", "evacuate": "rebuild_server",
}
FATAL = frozenset({"build", "rebuild"})
