"""A fake volume service with the part of Cinder's API that Nova uses, and with injected failures.

The responses are those of Cinder release 29. The fake Keystone issues tokens for a password; the token of a user is
"user:project", and the token of Nova itself begins with "service".
"""

from __future__ import annotations

import dataclasses
import http.server
import json
import threading
import urllib.parse
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Literal

import pytest

SERVICE = "service-token"
PROJECT = "service-project"
# The name of a type whose volumes are encrypted.
ENCRYPTED = "encrypted"

# Refuse the request; or fail before or after executing the request, with a response or without one.
How = Literal["refuse", "error", "error after", "silence", "silence after"]
Raw = dict[str, Any]


class Refused(Exception):
    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status, self.message = status, message


@dataclasses.dataclass
class Volume:
    project: str
    size: int = 1
    status: str = "available"
    name: str = ""
    description: str = ""
    bootable: bool = False
    image: Raw = dataclasses.field(default_factory=dict)
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    volume_type: str | None = None
    multiattach: bool = False
    # The snapshot that the volume was created from.
    snapshot: str | None = None
    # Id of the encryption key in the key manager; "": not encrypted.
    secret: str = ""
    provider: str = "luks"
    control_location: str = "front-end"
    # Number of queries during which the volume is still being created.
    looks: int = 0
    # The migration status of the volume.
    migration: str | None = None
    # The size after Nova has reported the extension; 0: no extension waits for Nova.
    new_size: int = 0
    # Type of the connection; for a file, the exported directory and the file in use.
    kind: str = "rbd"
    share: str = "/export"
    file: str = ""
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


@dataclasses.dataclass
class Attachment:
    volume: str
    server: str
    connector: Raw | None = None
    complete: bool = False
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))


@dataclasses.dataclass
class Snapshot:
    volume: Volume
    status: str = "available"
    name: str = ""
    description: str = ""
    metadata: dict[str, str] = dataclasses.field(default_factory=dict)
    # Number of queries during which the snapshot is still being created, and its status afterwards.
    looks: int = 0
    outcome: str = "available"
    progress: str = "0%"
    # Nova takes or deletes the snapshot (assisted snapshot).
    assisted: bool = False
    id: str = dataclasses.field(default_factory=lambda: str(uuid.uuid4()))

    def looked_at(self) -> Snapshot:
        if self.status == "creating" and not self.assisted:
            self.looks -= 1
            if self.looks < 0:
                self.status = self.outcome
        return self

    def shown(self) -> Raw:
        return {"id": self.id, "volume_id": self.volume.id, "status": self.status, "size": self.volume.size,
                "name": self.name, "description": self.description, "created_at": "2026-01-02T03:04:05.000006",
                "metadata": self.metadata, "os-extended-snapshot-attributes:project_id": self.volume.project}


class CinderService:
    """A fake Cinder. ``asked`` contains (verb, project of the token) of each request, in order."""

    def __init__(self) -> None:
        self.volumes: dict[str, Volume] = {}
        self.attachments: dict[str, Attachment] = {}
        self.snapshots: dict[str, Snapshot] = {}
        self.asked: list[tuple[str, str]] = []
        # New volumes are created after this number of queries, with this status.
        self.looks, self.outcome = 0, "available"
        # Creates the key of a new volume of an encrypted type; returns its id.
        self.new_secret: Callable[[str], str] = lambda project: ""
        # Maximum number of snapshots; -1: unlimited.
        self.most_snapshots = -1
        # Snapshots of attached volumes are assisted by Nova.
        self.wants_help = False
        self._failures: list[tuple[str, How, threading.Event, threading.Event]] = []
        self._twists: list[tuple[str, Callable[[Any], Any]]] = []
        self._lock = threading.RLock()
        self._server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.service = self  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"

    def start(self) -> None:
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def stop(self) -> None:
        self._server.shutdown()
        self._server.server_close()

    def options(self) -> dict[str, Any]:
        """Return the options of section [cinder] for a Nova that uses this service."""
        return {"auth_type": "password", "auth_url": f"{self.url}/identity/v3", "username": "nova",
                "password": "right", "project_name": "service", "user_domain_id": "default",
                "project_domain_id": "default", "timeout": 20}

    # --- methods for tests -----------------------------------------------------------------------------
    def new(self, project: str, **values: Any) -> str:
        made = Volume(project=project, **values)
        self.volumes[made.id] = made
        return made.id

    def migrate(self, volume: str) -> str:
        """Start the migration of an attached volume; return the id of the new volume. The test requests the swap."""
        found = self.volumes[volume]
        found.migration = "migrating"
        return self.new(found.project, size=found.size, migration=f"target:{volume}")

    def extend(self, volume: str, size: int, waits: bool = False) -> None:
        """Extend an attached volume, or only start it if the guest must extend the volume (``waits``). The test sends
        the event to Nova."""
        found = self.volumes[volume]
        if waits:
            found.status, found.new_size = "extending", size
        else:
            found.size = size

    def assist(self, volume: str, status: str = "creating") -> str:
        """Start the creation or deletion (``status``) of an assisted snapshot of an attached volume; return its id."""
        made = Snapshot(self.volumes[volume], status, assisted=True)
        self.snapshots[made.id] = made
        return made.id

    def fail(self, verb: str, how: How, times: int = 1) -> None:
        """Fail the next ``times`` requests of ``verb`` (a method's name)."""
        with self._lock:
            self._failures += [(verb, how, threading.Event(), _over())] * times

    def twist(self, verb: str, change: Callable[[Any], Any]) -> None:
        """Change the response to the next request of ``verb``."""
        with self._lock:
            self._twists.append((verb, change))

    def hold(self, verb: str, after: bool = False) -> tuple[threading.Event, Callable[[], None]]:
        """Block the next request of ``verb``, before or after it is executed.

        Return an event that is set when the request arrives, and a function that releases the request.
        """
        asked, released = threading.Event(), threading.Event()
        with self._lock:
            self._failures.append((verb, "silence after" if after else "silence", asked, released))
        return asked, released.set

    def servers_of(self, volume: str) -> list[str]:
        return [each.server for each in self.attachments.values() if each.volume == volume]

    def count(self, verb: str) -> int:
        return sum(asked == verb for asked, _project in self.asked)

    # --- the verbs -----------------------------------------------------------------------------------
    def answer(self, verb: str, project: str, act: Callable[[], tuple[int, Any]]) -> tuple[int, Any] | None:
        """Return the configured response, or None to proceed normally."""
        with self._lock:
            self.asked.append((verb, project))
            failure = next((each for each in self._failures if each[0] == verb), None)
            if failure is not None:
                self._failures.remove(failure)
        if failure is None:
            with self._lock:
                status, body = act()
                twist = next((each for each in self._twists if each[0] == verb), None)
                if twist is not None:
                    self._twists.remove(twist)
                    body = twist[1](body)
                return status, body
        _verb, how, asked, released = failure
        if how.endswith("after"):
            with self._lock:
                act()
        asked.set()
        released.wait(60)
        if how == "refuse":
            raise Refused(400, "Invalid volume: it was told to refuse.")
        return (500, None) if how.startswith("error") else None

    def volume(self, project: str, uuid_: str) -> Volume:
        found = self.volumes.get(uuid_.lower())  # MySQL ignores case
        if found is None or project not in (found.project, PROJECT):
            raise Refused(404, f"Volume {uuid_} could not be found.")
        if found.status == "creating":
            found.looks -= 1
            if found.looks < 0:
                found.status = self.outcome
        return found

    def shown(self, volume: Volume) -> Raw:
        return {"id": volume.id, "status": volume.status, "size": volume.size, "name": volume.name,
                "user_id": "u", "bootable": "true" if volume.bootable else "false", "encrypted": bool(volume.secret),
                "multiattach": volume.multiattach, "volume_type": volume.volume_type, "metadata": {
                    **volume.metadata, **({"extend_new_size": str(volume.new_size)} if volume.new_size else {})},
                "migration_status": volume.migration, "os-vol-tenant-attr:tenant_id": volume.project,
                "availability_zone": "nova", "description": volume.description, "snapshot_id": volume.snapshot,
                "created_at": "2026-01-02T03:04:05.000006", "volume_image_metadata": volume.image, "attachments": [
                    {"id": volume.id, "attachment_id": each.id, "volume_id": volume.id, "server_id": each.server,
                     "device": (each.connector or {}).get("mountpoint")}
                    for each in self.attachments.values()
                    if each.volume == volume.id and (each.complete or each.connector)]}

    def create_volume(self, project: str, wanted: Raw) -> Raw:
        image, snapshot = wanted.get("imageRef"), wanted.get("snapshot_id")
        origin = self.snapshot(project, snapshot).volume if snapshot else None
        if origin is not None and wanted["size"] < origin.size:
            raise Refused(400, "Invalid input received: it is smaller than its snapshot.")
        if wanted.get("volume_type") == "unknown":
            raise Refused(404, "Volume type unknown could not be found.")
        made = Volume(project=project, size=wanted["size"], name=wanted.get("name", ""), status="creating",
                      description=wanted.get("description", ""),
                      metadata=wanted.get("metadata", {}), volume_type=wanted.get("volume_type"),
                      bootable=bool(image) or (origin is not None and origin.bootable),
                      image={"image_id": image} if image else origin.image if origin else {}, looks=self.looks)
        made.snapshot = snapshot
        if wanted.get("volume_type") == ENCRYPTED or (origin is not None and origin.secret):
            made.secret = self.new_secret(project)
        self.volumes[made.id] = made
        return self.shown(made)

    def encryption(self, volume: Volume) -> Raw:
        if not volume.secret:
            return {}
        return {"encryption_key_id": volume.secret, "control_location": volume.control_location,
                "cipher": "aes-xts-plain64", "key_size": 256, "provider": volume.provider}

    def delete_volume(self, project: str, uuid_: str) -> None:
        found = self.volume(project, uuid_)
        kept = any(each.volume is found for each in self.snapshots.values())
        if found.status not in ("available", "error") or self.servers_of(uuid_) or kept:
            raise Refused(400, "Invalid volume: Volume status must be available or error and must not be attached or "
                               "have snapshots.")
        del self.volumes[uuid_]

    def act(self, project: str, uuid_: str, action: str, wanted: Raw) -> None:
        if action == "os-reimage":
            self.reimage(self.volume(project, uuid_), wanted)
            return
        if action == "os-extend_volume_completion":
            self.end_extension(self.volume(project, uuid_), wanted["error"])
            return
        if action == "os-migrate_volume_completion":
            self.end_migration(self.volume(project, uuid_), self.volume(project, wanted["new_volume"]), wanted["error"])
            return
        if action == "os-begin_detaching" and self.volume(project, uuid_).migration == "migrating":
            return  # The old volume stays attached to its servers.
        found, (before, after) = self.volume(project, uuid_), {
            "os-begin_detaching": ("in-use", "detaching"), "os-roll_detaching": ("detaching", "in-use")}[action]
        if found.status != before:
            raise Refused(400, f"Invalid volume: Volume status must be {before}, but is {found.status}.")
        found.status = after

    def end_migration(self, old: Volume, new: Volume, error: bool) -> None:
        """Move the data and attachments of the new volume to the old volume, and delete the data of the old volume."""
        if old.migration is None or new.migration != f"target:{old.id}":
            raise Refused(400, "Invalid volume: it is not mid-migration.")
        unused = new if error else old
        if self.servers_of(unused.id):
            raise Refused(400, f"Invalid volume: volume {unused.id} is in use.")
        old.migration = "error" if error else "success"
        if not error:
            old.status = new.status
            for attachment in self.attachments.values():
                if attachment.volume == new.id:
                    attachment.volume = old.id
        del self.volumes[new.id]

    def end_extension(self, found: Volume, error: bool) -> None:
        if found.status != "extending" or found.new_size <= found.size:
            raise Refused(400, f"Invalid volume: no extension of volume {found.id} waits.")
        found.status, found.size = ("error_extending", found.size) if error else ("in-use", found.new_size)
        found.new_size = 0

    def reimage(self, found: Volume, wanted: Raw) -> None:
        """Start to reimage the volume. The test sends the event to Nova later."""
        if found.status != "reserved" or not wanted["reimage_reserved"]:
            raise Refused(409, f"Invalid volume: Volume status must be reserved, but is {found.status}.")
        if any(each.connector for each in self.attachments.values() if each.volume == found.id):
            raise Refused(409, "Invalid volume: a host has it.")
        found.status, found.image = "downloading", {"image_id": wanted["image_id"]}

    def snapshot(self, project: str, uuid_: str) -> Snapshot:
        found = self.snapshots.get(uuid_.lower())
        if found is None or project not in (found.volume.project, PROJECT):
            raise Refused(404, f"Snapshot {uuid_} could not be found.")
        return found.looked_at()

    def list_snapshots(self, project: str, query: dict[str, str]) -> list[Raw]:
        whole, wanted = query.get("all_tenants") and project == PROJECT, json.loads(query.get("metadata", "{}"))
        found = [each.looked_at().shown() for each in list(self.snapshots.values())
                 if (whole or each.volume.project == project) and wanted.items() <= each.metadata.items()]
        start = int(query.get("offset", 0))
        return found[start:start + int(query.get("limit", 1000))]

    def limits(self, project: str) -> Raw:
        used = sum(each.volume.project == project for each in self.snapshots.values())
        return {"rate": [], "absolute": {"totalSnapshotsUsed": used, "maxTotalSnapshots": self.most_snapshots}}

    def create_snapshot(self, project: str, wanted: Raw) -> Raw:
        volume = self.volume(project, wanted["volume_id"])
        if volume.status != "available" and not (wanted["force"] and volume.status == "in-use"):
            raise Refused(400, f"Invalid volume: Volume {volume.id} status must be available, but current status is: "
                               f"{volume.status}.")
        if self.most_snapshots >= 0 and len(self.snapshots) >= self.most_snapshots:
            raise Refused(413, f"SnapshotLimitExceeded: Maximum number of snapshots allowed ({self.most_snapshots}) "
                               "exceeded")
        made = Snapshot(volume, "creating", wanted.get("name", ""), wanted.get("description", ""),
                        wanted.get("metadata", {}), self.looks, self.outcome,
                        assisted=self.wants_help and volume.status == "in-use")
        self.snapshots[made.id] = made
        return made.shown()

    def update_snapshot(self, project: str, uuid_: str, told: Raw) -> None:
        found, status = self.snapshot(project, uuid_), told["status"]
        if status not in {"creating": ("creating", "available", "error"),
                          "deleting": ("deleting", "error_deleting")}.get(found.status, ()):
            raise Refused(400, f"Invalid snapshot: {status} is not allowed for a snapshot that is {found.status}.")
        found.status, found.progress = status, told["progress"]

    def delete_snapshot(self, project: str, uuid_: str) -> None:
        found = self.snapshot(project, uuid_)
        if found.status not in ("available", "error"):
            raise Refused(400, "Invalid snapshot: Snapshot status must be available or error.")
        del self.snapshots[found.id]

    def create_attachment(self, project: str, wanted: Raw) -> Raw:
        found = self.volume(project, wanted["volume_uuid"])
        again = found.status in ("in-use", "reserved") and wanted["instance_uuid"] in self.servers_of(found.id)
        shared = found.multiattach and found.status == "in-use"
        if found.status not in ("available", "downloading") and not again and not shared:
            raise Refused(400, f"Invalid volume: Volume {found.id} status must be available or downloading to "
                               f"reserve, but the current status is {found.status}.")
        if not again:
            found.status = "reserved"
        made = Attachment(volume=found.id, server=wanted["instance_uuid"], connector=wanted["connector"])
        self.attachments[made.id] = made
        return self.attached(made)

    def attached(self, attachment: Attachment) -> Raw:
        info: Raw = {}
        volume = self.volumes[attachment.volume]
        if attachment.connector is not None and volume.kind == "nfs":
            info = {"driver_volume_type": "nfs", "export": f"127.0.0.1:{volume.share}", "options": None,
                    "name": volume.file or f"volume-{volume.id}", "format": "qcow2", "access_mode": "rw",
                    "qos_specs": None, "encrypted": False, "volume_id": volume.id, "attachment_id": attachment.id}
        elif attachment.connector is not None:
            info = {"driver_volume_type": "rbd", "name": f"volumes/volume-{attachment.volume}",
                    "hosts": ["127.0.0.1"], "ports": ["6789"], "auth_enabled": True, "auth_username": "cinder",
                    "secret_uuid": "457eb676-33da-42ec-9a8c-9293d545c337", "discard": True, "qos_specs": None,
                    "access_mode": "rw", "encrypted": bool(self.volumes[attachment.volume].secret),
                    "volume_id": attachment.volume,
                    "attachment_id": attachment.id}
        status = "attached" if attachment.complete else "attaching" if info else "reserved"
        return {"id": attachment.id, "status": status, "instance": attachment.server,
                "volume_id": attachment.volume, "connection_info": info}

    def attachment(self, uuid_: str) -> Attachment:
        if uuid_ not in self.attachments:
            raise Refused(404, f"Volume attachment could not be found with filter: attachment_id = {uuid_}.")
        return self.attachments[uuid_]

    def update_attachment(self, uuid_: str, wanted: Raw) -> Raw:
        found = self.attachment(uuid_)
        others = [each for each in self.attachments.values() if each.volume == found.volume]
        if len(others) > 1 and not self.volumes[found.volume].multiattach and any(each.connector for each in others):
            raise Refused(409, f"Resource conflict: duplicate connectors detected on volume {found.volume}")
        found.connector = wanted["connector"]
        if self.volumes[found.volume].status != "in-use":
            self.volumes[found.volume].status = "attaching"
        return self.attached(found)

    def complete_attachment(self, uuid_: str) -> None:
        found = self.attachment(uuid_)
        found.complete = True
        self.volumes[found.volume].status = "in-use"

    def delete_attachment(self, uuid_: str, service_token: str) -> None:
        found = self.attachment(uuid_)
        if service_token != SERVICE:
            raise Refused(500, "The server has either erred or is incapable of performing the requested operation.")
        del self.attachments[uuid_]
        left = [each for each in self.attachments.values() if each.volume == found.volume]
        if not any(each.connector for each in left):
            self.volumes[found.volume].status = "reserved" if left else "available"
        elif all(each.complete for each in left):
            self.volumes[found.volume].status = "in-use"


def _over() -> threading.Event:
    event = threading.Event()
    event.set()
    return event


class _Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *args: Any) -> None: ...

    def _send(self, status: int, body: Any = None, **headers: str) -> None:
        data = b"" if body is None else json.dumps(body).encode()
        self.send_response(status)
        for name, value in {"Content-Type": "application/json", "Content-Length": str(len(data)), **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(data)

    def _handle(self) -> None:
        url = urllib.parse.urlsplit(self.path)
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        service: CinderService = self.server.service  # type: ignore[attr-defined]
        if url.path.startswith("/identity"):
            self._identity(service, url.path, body)
            return
        query = dict(urllib.parse.parse_qsl(url.query))
        try:
            found = next(self._verbs(service, url.path, query, body))
            answer = service.answer(*found)
        except Refused as refused:
            answer = refused.status, {"error": {"code": refused.status, "message": refused.message}}
        except StopIteration:
            answer = 404, {"itemNotFound": {"code": 404, "message": "The resource could not be found."}}
        if answer is None:
            self.close_connection = True
        else:
            self._send(*answer)

    do_GET = do_POST = do_PUT = do_DELETE = _handle

    def _verbs(self, service: CinderService, path: str, query: dict[str, str], body: Any
               ) -> Iterator[tuple[str, str, Callable[[], tuple[int, Any]]]]:
        token = self.headers.get("X-Auth-Token", "")
        project = PROJECT if token == SERVICE else token.partition(":")[2]
        _, version, in_path, kind, *rest = [*path.split("/"), "", ""]
        if (version, in_path) != ("v3", project) or not project:
            raise Refused(400, "Malformed request url")
        rest, method = [each for each in rest if each], self.command
        whole = query.get("all_tenants") and project == PROJECT
        match method, kind, rest:
            case "GET", "volumes", ["detail"]:
                wanted = json.loads(query.get("metadata", "{}"))
                start = int(query.get("offset", 0))
                yield "list_volumes", project, lambda: (200, {"volumes": [
                    service.shown(service.volume(project, each.id)) for each in list(service.volumes.values())
                    if (whole or each.project == project) and wanted.items() <= each.metadata.items()][
                        start:start + int(query.get("limit", 1000))]})
            case "GET", "volumes", [this]:
                yield "show_volume", project, lambda: (200, {"volume": service.shown(service.volume(project, this))})
            case "GET", "volumes", [this, "encryption"]:
                yield "show_encryption", project, lambda: (200, service.encryption(service.volume(project, this)))
            case "POST", "volumes", []:
                yield "create_volume", project, lambda: (202, {"volume": service.create_volume(
                    project, body["volume"])})
            case "DELETE", "volumes", [this]:
                yield "delete_volume", project, lambda: (202, service.delete_volume(project, this))
            case "POST", "volumes", [this, "action"]:
                action, = body
                if action == "os-extend_volume_completion" and self.headers["OpenStack-API-Version"] != "volume 3.71":
                    raise Refused(400, f"There is no such action: {action}.")
                yield action, project, lambda: (202, service.act(project, this, action, body[action]))
            case "GET", "snapshots", ["detail"]:
                yield "list_snapshots", project, lambda: (200, {"snapshots": service.list_snapshots(project, query)})
            case "GET", "limits", []:
                yield "limits", project, lambda: (200, {"limits": service.limits(project)})
            case "GET", "snapshots", [this]:
                yield "show_snapshot", project, lambda: (200, {"snapshot": service.snapshot(project, this).shown()})
            case "POST", "snapshots", []:
                yield "create_snapshot", project, lambda: (202, {"snapshot": service.create_snapshot(
                    project, body["snapshot"])})
            case "POST", "snapshots", [this, "action"]:
                action, = body
                yield action, project, lambda: (202, service.update_snapshot(project, this, body[action]))
            case "DELETE", "snapshots", [this]:
                yield "delete_snapshot", project, lambda: (202, service.delete_snapshot(project, this))
            case "GET", "attachments", ["detail"]:
                yield "list_attachments", project, lambda: (200, {"attachments": [
                    service.attached(each) for each in service.attachments.values()
                    if whole and query.get("instance_id", each.server) == each.server
                    and query.get("volume_id", each.volume) == each.volume]})
            case "POST", "attachments", []:
                yield "create_attachment", project, lambda: (200, {"attachment": service.create_attachment(
                    project, body["attachment"])})
            case "PUT", "attachments", [this]:
                yield "update_attachment", project, lambda: (200, {"attachment": service.update_attachment(
                    this, body["attachment"])})
            case "POST", "attachments", [this, "action"]:
                yield "complete_attachment", project, lambda: (204, service.complete_attachment(this))
            case "DELETE", "attachments", [this]:
                given = self.headers.get("X-Service-Token", "")
                yield "delete_attachment", project, lambda: (200, service.delete_attachment(this, given))

    def _identity(self, service: CinderService, path: str, body: Any) -> None:
        if path != "/identity/v3/auth/tokens":
            self._send(200, {"version": {"id": "v3.14", "status": "stable", "links": [
                {"rel": "self", "href": f"{service.url}/identity/v3/"}]}})
            return
        user = body["auth"]["identity"]["password"]["user"]
        if user["password"] != "right":
            self._send(401, {"error": {"code": 401, "message": "no"}})
            return
        endpoint = {"id": "e", "interface": "public", "region": "R", "region_id": "R",
                    "url": f"{service.url}/v3/{PROJECT}"}
        token = {"methods": ["password"], "expires_at": "2099-01-01T00:00:00.000000Z", "issued_at":
                 "2026-01-01T00:00:00.000000Z", "user": {"id": "n", "name": "nova", "domain": {"id": "default"}},
                 "roles": [], "project": {"id": PROJECT, "name": "service", "domain": {"id": "default"}},
                 "catalog": [{"type": "volumev3", "name": "cinderv3", "id": "s", "endpoints": [endpoint]}]}
        self._send(201, {"token": token}, X_Subject_Token=SERVICE)


@pytest.fixture(name="cinder", scope="module")
def cinder_fixture() -> Iterator[CinderService]:
    service = CinderService()
    service.start()
    yield service
    service.stop()
