"""What other services tell of a server."""

from __future__ import annotations

from nova.objects.base import Object

# status
COMPLETED = "completed"
FAILED = "failed"
IN_PROGRESS = "in-progress"


class ExternalEvent(Object, kw_only=True):
    """``tag`` says of what: the id of a port, of a volume, and so on."""

    name: str
    instance_uuid: str
    status: str = COMPLETED
    tag: str | None = None
