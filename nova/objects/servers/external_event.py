"""Events about servers that other services send (os-server-external-events)."""

from nova.objects.base import Object

COMPLETED, FAILED, IN_PROGRESS = "completed", "failed", "in-progress"  # status


class ExternalEvent(Object, kw_only=True):
    """An event. ``tag``: id of the affected object, for example of a port or a volume."""

    name: str
    instance_uuid: str
    status: str = COMPLETED
    tag: str | None = None
