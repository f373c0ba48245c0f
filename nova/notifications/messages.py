"""What happened, and the messages that tell of it in the forms that are configured."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from oslo_config import cfg

from nova import context
from nova.conf import CONF
from nova.notifications import legacy, resources, versioned
from nova.objects.action import Failure
from nova.objects.base import new_uuid, utcnow
from nova.objects.instance import Instance
from nova.objects.notification import Notification
from nova.objects.server_group import ServerGroup
from nova.objects.usage import audit_period

ERROR = "error"


@dataclasses.dataclass(frozen=True)
class Settings:
    """In which form things are told, and with what."""

    versioned: bool = False
    unversioned: bool = False
    volumes: bool = False
    shares: bool = False
    level: str = "INFO"
    period: str = "month"

    @classmethod
    def of(cls, conf: cfg.ConfigOpts) -> Settings:
        options = conf.notifications
        return cls(versioned=options.notification_format != "unversioned",
                   unversioned=options.notification_format != "versioned", volumes=options.bdms_in_notifications,
                   shares=options.include_share_mapping,
                   level=options.default_level, period=conf.instance_usage_audit_period)


@dataclasses.dataclass(frozen=True)
class Happened:
    """One thing that happened to a server. ``event`` as versioned notifications name it, without their "instance.";
    ``phase``: start, end, error or "" ; ``more``: fields of the event's own payload beside those of every one.
    """

    event: str
    phase: str
    publisher: str
    instance: Instance
    failure: Failure | None = None
    more: dict[str, Any] = dataclasses.field(default_factory=dict)


# event -> the payload of its own (the others have an InstanceActionPayload).
_ACTION = ("InstanceActionPayload", "1.9")
_PAYLOADS = {
    "create": ("InstanceCreatePayload", "1.13"),
    "exists": ("InstanceExistsPayload", "2.1"),
    "rebuild": ("InstanceActionRebuildPayload", "1.10"),
    "rebuild_scheduled": ("InstanceActionRebuildPayload", "1.10"),
    "rescue": ("InstanceActionRescuePayload", "1.4"),
    "resize_prep": ("InstanceActionResizePrepPayload", "1.4"),
    "snapshot": ("InstanceActionSnapshotPayload", "1.10"),
    "share_attach": ("InstanceActionSharePayload", "1.0"),
    "share_detach": ("InstanceActionSharePayload", "1.0"),
    "update": ("InstanceUpdatePayload", "2.1"),
    "volume_attach": ("InstanceActionVolumePayload", "1.7"),
    "volume_detach": ("InstanceActionVolumePayload", "1.7"),
    "volume_swap": ("InstanceActionVolumeSwapPayload", "1.9"),
}
# The columns of a server of which a change is told (instance.update).
SHOWN = frozenset({
    "display_name", "display_description", "hostname", "host", "node", "availability_zone", "flavor", "image_ref",
    "image", "key", "kernel_id", "ramdisk_id", "launched_at", "terminated_at", "vm_state", "power_state", "task_state",
    "network_info", "block_devices", "shares", "metadata", "locked_by", "locked_reason", "disk_config", "tags",
    "deleted"})
# Those that tell how a server is rather than what is done with it: they have no fault.
_STATES = frozenset({"exists", "update"})
# event -> fields that are as the server has them.
_OF_SERVER: dict[str, Callable[[Instance], dict[str, Any]]] = {
    "create": lambda of: {"keypairs": versioned.keypairs(of), "tags": sorted(of.tags),
                          "instance_name": of.name_by(CONF.instance_name_template),
                          "trusted_image_certificates": of.trusted_certs},
    "rebuild": lambda of: {"trusted_image_certificates": of.trusted_certs},
    "rebuild_scheduled": lambda of: {"trusted_image_certificates": of.trusted_certs},
    "update": lambda of: {"tags": sorted(of.tags)},
}


class Teller:
    """Makes messages for whoever asked (``ctx``), in the forms of ``settings``."""

    def __init__(self, settings: Settings, ctx: context.RequestContext) -> None:
        self.settings = settings
        self.now = utcnow()
        asked = {"request_id": ctx.request_id, "user_id": ctx.user_id, "project_id": ctx.project_id}
        self.context: dict[str, str] = {name: value for name, value in asked.items() if value}

    def server(self, what: Happened) -> list[Notification]:
        """What happened to a server, as it is now."""
        made = []
        if self.settings.versioned:
            made.append(self._message(
                what, ".".join(filter(None, ("instance", what.event, what.phase))), self._payload(what), True))
        if self.settings.unversioned:
            name = legacy.event_of(what.event, what.phase)
            if name:
                payload = legacy.instance(what.instance, what.more, what.failure, self.settings.volumes)
                made.append(self._message(what, name, payload, False))
        return made

    def _payload(self, what: Happened) -> dict[str, Any]:
        name, version = _PAYLOADS.get(what.event, _ACTION)
        data = versioned.instance(what.instance, self.now, self.context, self.settings.volumes,
                                  self.settings.shares)
        if what.event not in _STATES:
            data["fault"] = versioned.failure(what.failure) if what.failure else None
        if what.event in _OF_SERVER:
            data |= _OF_SERVER[what.event](what.instance)
        return versioned.wrapped(name, version, {**data, **what.more})

    def _message(self, what: Happened, event_type: str, payload: dict[str, Any], is_versioned: bool) -> Notification:
        return self.message(what.instance.uuid, event_type, what.publisher, payload, is_versioned,
                            ERROR.upper() if what.phase == ERROR else "INFO")

    def message(self, subject: str, event_type: str, publisher: str, payload: dict[str, Any], is_versioned: bool,
                priority: str = "INFO") -> Notification:
        return Notification(
            message_id=new_uuid(), subject=subject, versioned=is_versioned, event_type=event_type, priority=priority,
            publisher_id=publisher, payload=payload, context=self.context, created_at=self.now)

    def resource(self, event: str, subject: str, payload: dict[str, Any], old_name: str = "",
                 old_payload: dict[str, Any] | None = None, by: str = "", failed: bool = False) -> list[Notification]:
        """What happened to something else than a server; ``old_name``, ``old_payload``: unversioned, if it is told so.

        By the API, unless it is told ``by`` somebody else. ``failed``: at the level of errors.
        """
        by, made = by or publisher("nova-api", CONF.host), []
        priority = ERROR.upper() if failed or payload["nova_object.name"] == "ExceptionPayload" else "INFO"
        if self.settings.versioned:
            made.append(self.message(subject, event, by, payload, True, priority))
        if self.settings.unversioned and old_name:
            made.append(self.message(subject, old_name, by, old_payload or {}, False, priority))
        return made

    def joined(self, group: ServerGroup, members: Sequence[str]) -> list[Notification]:
        """New servers of a group, one by one."""
        each = [msgspec.structs.replace(group, members=[member]) for member in members]
        return [told for of in each for told in self.resource(
            "server_group.add_member", of.uuid, resources.server_group(of), "servergroup.addmember",
            {"server_group_id": of.uuid, "instance_uuids": of.members})]

    def existed(self, instance: Instance, publisher: str, begin: datetime.datetime,
                ending: datetime.datetime) -> list[Notification]:
        """A server that there was in a period."""
        return self.server(Happened("exists", "", publisher, instance, more={
            "audit_period": versioned.audit_period(begin, ending)}))

    # --- the payloads of changes -----------------------------------------------------------------------
    def changed(self, instance: Instance, publisher: str, was: tuple[str | None, str | None], which: str,
                old_name: str | None = None) -> list[Notification]:
        """A server that was written. ``was``: its vm_state and task_state before; ``which``: vm_state or
        vm_and_task_state, the changes that are told as such."""
        is_now = (instance.vm_state, instance.task_state)
        told = was[0] != is_now[0] or (which == "vm_and_task_state" and was[1] != is_now[1])
        old_state, old_task = was if told else is_now
        states = {"old_state": old_state, "state": is_now[0], "old_task_state": old_task, "new_task_state": is_now[1]}
        _begin, begin = audit_period(self.settings.period, self.now)
        return self.server(Happened("update", "", publisher, instance, more={
            "state_update": versioned.wrapped("InstanceStateUpdatePayload", "1.0", states),
            "audit_period": versioned.audit_period(begin, self.now), "old_display_name": old_name}))


def publisher(binary: str, host: str | None) -> str:
    return f"{binary}:{host or ''}"
