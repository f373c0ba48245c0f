"""Actions of POST /servers/{server_id}/action that create an image of a server."""

import itertools
from typing import Any

from nova import exception, image
from nova.api import polling
from nova.api.compute.images.image_metadata import check_quota
from nova.api.compute.servers.servers import authorize, get, operate, server_id
from nova.api.request import Request, Response, whole
from nova.api.router import accepts
from nova.api.validation.fields import Field, Object, Plain, only
from nova.api.validation.types import METADATA, NAME, STRICT_NAME, STRING
from nova.conf import CONF

# Seconds that a response waits until the image in its Location header is visible, and seconds between two polls.
_TIMEOUT, _PAUSE = 5.0, 0.05
# Number of polls between two checks whether the action has ended without an image.
_CHECKS = 10

_COUNT = Plain(type=["integer", "string"], pattern="^[0-9]*$", minimum=0, minLength=1)
_ANSWER = Object({"image_id": Field(STRING, since=45)})


@accepts(body=only("createImage", Object({"name": Field(STRICT_NAME, required=True), "metadata": METADATA})),
         answer=_ANSWER, errors=(409,), located=44)
def create_image(req: Request) -> Any:
    """Create an image of a server."""
    server = authorize(req, "os_compute_api:servers:create_image") or get(req)
    return _made(req, "create_volume_image" if server.volume_backed else "create_image", req.body["createImage"])


@accepts(body=only("createBackup", Object({
    "name": Field(NAME, required=True), "backup_type": Field(STRING, required=True),
    "rotation": Field(_COUNT, required=True), "metadata": METADATA})), answer=_ANSWER, errors=(409,), located=44)
def create_backup(req: Request) -> Any:
    """Create a backup image of a server, and delete its oldest backups if there are more than ``rotation``."""
    authorize(req, "os_compute_api:os-create-backup")
    wanted = {**req.body["createBackup"], "rotation": whole(req.body["createBackup"]["rotation"])}
    return _made(req, "create_backup", wanted, keeps=wanted["rotation"] > 0)


def _made(req: Request, operation: str, wanted: dict[str, Any], keeps: bool = True) -> Any:
    if req.version < 39 and wanted.get("metadata"):
        check_quota(req, wanted["metadata"])
    image_id = operate(req, operation, wanted).answer["image_id"]
    if keeps:  # With rotation 0 the image is deleted as soon as it exists.
        _wait_until_visible(req, image_id)
    if req.version >= 45:
        return {"image_id": image_id}
    base = (CONF.api.glance_link_prefix or req.host_url).rstrip("/")
    return Response(headers={"Location": f"{base}/images/{image_id}"} if keeps else {})


def _wait_until_visible(req: Request, image_id: str) -> None:
    """Wait until the image exists, because clients request it as soon as they have its id. If it cannot be created, the
    failure is shown by os-instance-actions."""
    checks = itertools.count(1)

    def is_visible() -> bool:
        try:
            image.store().show(req.ctx, image_id, token=req.ctx.auth_token)
        except exception.ImageNotFound:
            return next(checks) % _CHECKS == 0 and _has_ended(req)
        except exception.NovaException:
            pass  # It is unknown whether the image exists: do not wait.
        return True

    polling.until(req, is_visible, _TIMEOUT, _PAUSE)


def _has_ended(req: Request) -> bool:
    """Return True if the snapshot of this request has ended, so that a missing image will not appear any more."""
    try:
        return req.clients.actions.get(req.ctx, server_id(req), req.ctx.request_id).finish_time is not None
    except exception.NovaException:
        return False  # It is unknown whether the action has ended: wait.
