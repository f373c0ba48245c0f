"""A podman service in memory that answers on a unix socket, with faults.

Containers exist without being run. Each start of a container appends the reference of its image to its volumes.
"""

from __future__ import annotations

import contextlib
import hashlib
import http.server
import itertools
import json
import pathlib
import re
import socketserver
import struct
import threading
import time
import urllib.parse
from collections.abc import Callable
from typing import Any

# (method, path) -> the fault of the request: raw bytes instead of the response, "lie" (success without effect), "hang",
# or None.
Fault = Callable[[str, str], bytes | str | None]


def reply(body: Any, status: int = 200) -> bytes:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return f"HTTP/1.0 {status} x\r\nContent-Length: {len(content)}\r\n\r\n".encode() + content


class FakePodman:
    """``image_configs``: configuration by reference. ``fault`` decides about each request, except pings."""

    def __init__(self, path: pathlib.Path) -> None:
        self.path = path
        self.containers: dict[str, dict[str, Any]] = {}  # by id
        self.networks: set[str] = set()
        self.volumes: dict[str, str] = {}  # volumes without a name: container by id
        self.images: dict[str, str] = {}  # reference by id
        self.image_configs: dict[str, dict[str, Any]] = {}
        self.image_sizes: dict[str, int] = {}  # unpacked bytes by reference
        self.fault: Fault = lambda _method, _path: None
        self.stopped: list[str] = []  # names of containers that received a signal to stop
        self.released = threading.Event()  # Ends requests that hang.
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._server = _Server(str(path), _Handler)
        self._server.podman = self
        threading.Thread(target=self._server.serve_forever, args=(0.05,), daemon=True).start()

    def close(self) -> None:
        self.released.set()
        self._server.shutdown()
        self._server.server_close()

    def named(self) -> dict[str, tuple[str, bool]]:
        """Return (reference of the image, whether it runs) by the name of the container."""
        return {container["Name"]: (self.images[container["Image"]], container["State"]["Running"])
                for container in self.containers.values()}

    def container(self, key: str) -> dict[str, Any] | None:
        return self.containers.get(key) or next(
            (container for container in self.containers.values() if container["Name"] == key), None)

    def answer(self, method: str, path: str, query: dict[str, str], body: Any, lie: bool) -> bytes:
        for pattern, known_method, handler in _ROUTES:
            if method == known_method and (match := re.fullmatch(pattern, path)):
                with self._lock:
                    return handler(self, *map(urllib.parse.unquote, match.groups()), query=query, body=body, lie=lie)
        return reply({"cause": "no route", "message": f"no route {method} {path}"}, 404)

    # --- handlers ----------------------------------------------------------------------------------
    def _pull(self, query: dict[str, str], **_more: Any) -> bytes:
        ident = hashlib.sha256(query["reference"].encode()).hexdigest()
        self.images[ident] = query["reference"]
        return reply(json.dumps({"stream": "x"}).encode() + b"\n" + json.dumps({"id": ident}).encode() + b"\n")

    def _image(self, ident: str, **_more: Any) -> bytes:
        if ident not in self.images:
            return _missing("image")
        return reply({"Id": ident, "Digest": f"sha256:{ident}", "RepoTags": [],
                      "Size": self.image_sizes.get(self.images[ident], 0),
                      "Config": self.image_configs.get(self.images[ident], {})})

    def _list_images(self, **_more: Any) -> bytes:
        return reply([{"Id": ident} for ident in self.images])

    def _remove_image(self, ident: str, **_more: Any) -> bytes:
        if any(container["Image"] == ident for container in self.containers.values()):
            return reply({"cause": "image is in use", "message": "image is in use by a container"}, 409)
        return reply({"Deleted": [self.images.pop(ident)], "ExitCode": 0})

    def _create(self, body: Any, lie: bool, **_more: Any) -> bytes:
        ident = hashlib.sha256(f"{body['name']} {next(self._numbers)}".encode()).hexdigest()
        if lie:
            return reply({"Id": ident}, 201)
        if self.container(body["name"]):
            return reply({"cause": "that name is already in use", "message": "the container name is in use"}, 500)
        mounts = [mount["Source"] for mount in body.get("mounts") or [] if mount.get("Source")]
        mounts += [volume.get("source") or volume.get("Name") for volume in body.get("volumes") or []]
        self.containers[ident] = {
            "Id": ident, "Name": body["name"], "Image": body["image"], "Mounts": mounts,
            "Config": {"Labels": body["labels"]}, "State": {"Running": False, "ExitCode": 0, "StartedAt": ""}}
        return reply({"Id": ident}, 201)

    def _inspect(self, key: str, **_more: Any) -> bytes:
        container = self.container(key)
        if container is None:
            return _missing("container")
        mounts = [{"Type": "bind", "Source": source} for source in container["Mounts"]]
        return reply({**container, "Mounts": [*mounts, *(
            {"Type": "volume", "Name": name} for name, user in self.volumes.items() if user == container["Name"])]})

    def _remove_volume(self, name: str, lie: bool, **_more: Any) -> bytes:
        if name not in self.volumes:
            return _missing("volume")
        if self.container(self.volumes[name]):
            return reply({"cause": "volume is being used", "message": "volume is being used"}, 409)
        if not lie:
            del self.volumes[name]
        return b"HTTP/1.0 204 x\r\n\r\n"

    def _start(self, key: str, lie: bool, **_more: Any) -> bytes:
        container = self.container(key)
        if container is None:
            return _missing("container")
        if container["State"].get("Status") in ("paused", "stopping"):
            return reply({"cause": "improper state", "message": "must be in Created or Stopped state"}, 500)
        if not lie:
            container["State"] = {"Running": True, "ExitCode": 0,
                                  "StartedAt": time.strftime("%Y-%m-%dT%H:%M:%S.5Z", time.gmtime())}
        return b"HTTP/1.0 204 x\r\n\r\n"

    def _stop(self, key: str, lie: bool, **_more: Any) -> bytes:
        container = self.container(key)
        if container is None:
            return _missing("container")
        if container["State"].get("Status") == "paused":
            return reply({"cause": "improper state", "message": "can only stop created or running containers"}, 500)
        if not lie:
            container["State"] = {"Running": False, "ExitCode": 143, "StartedAt": ""}
            self.stopped.append(container["Name"])
        return b"HTTP/1.0 204 x\r\n\r\n"

    def _unpause(self, key: str, **_more: Any) -> bytes:
        container = self.container(key)
        if container is None:
            return _missing("container")
        container["State"] = {"Running": True, "Status": "running", "ExitCode": 0, "StartedAt": ""}
        return b"HTTP/1.0 204 x\r\n\r\n"

    def _remove(self, key: str, query: dict[str, str], lie: bool, **_more: Any) -> bytes:
        container = self.container(key)
        if container is None:
            return _missing("container")
        if not lie:
            if query.get("v", "false").lower() in ("true", "1"):
                self.volumes = {name: user for name, user in self.volumes.items() if user != container["Name"]}
            del self.containers[container["Id"]]
        return reply([{"Id": container["Id"], "Err": "device busy" if lie else None}])

    def _list(self, query: dict[str, str], **_more: Any) -> bytes:
        label, _equals, value = json.loads(query["filters"])["label"][0].partition("=")
        return reply([{"Id": container["Id"], "Names": [container["Name"]], "ImageID": container["Image"],
                       "State": "running" if container["State"]["Running"] else "exited", "StartedAt": 1795854375,
                       "ExitCode": container["State"]["ExitCode"], "Labels": container["Config"]["Labels"]}
                      for container in self.containers.values()
                      if container["Config"]["Labels"].get(label) == value])

    def _exec(self, key: str, body: Any, **_more: Any) -> bytes:
        return reply({"Id": f"exec-{key}"}, 201) if self.container(key) else _missing("container")

    def _logs(self, *_keys: str, **_more: Any) -> bytes:
        return b"HTTP/1.0 200 x\r\n\r\n" + struct.pack(">BxxxL", 1, 3) + b"ok\n"

    def _state(self, _key: str, **_more: Any) -> bytes:
        return reply({"Running": False, "ExitCode": 0, "Pid": 0})

    def _make_network(self, body: Any, lie: bool, **_more: Any) -> bytes:
        if not lie:
            self.networks.add(body["name"])
        return reply({"name": body["name"], "id": body["name"]})

    def _network(self, name: str, **_more: Any) -> bytes:
        return reply({"name": name, "id": name}) if name in self.networks else _missing("network")

    def _remove_network(self, name: str, lie: bool, **_more: Any) -> bytes:
        if not lie:
            self.networks.discard(name)
        return reply([{"Name": name, "Err": None}])

    def _image_exists(self, ident: str, **_more: Any) -> bytes:
        return b"HTTP/1.0 204 x\r\n\r\n" if ident in self.images else _missing("image")

    def _network_exists(self, name: str, **_more: Any) -> bytes:
        return b"HTTP/1.0 204 x\r\n\r\n" if name in self.networks else _missing("network")

    def _version(self, **_more: Any) -> bytes:
        return reply({"Version": "0"})

    def _info(self, **_more: Any) -> bytes:
        return reply({"store": {"graphRoot": str(self.path.parent)}})


_ROUTES = [
    ("/version", "GET", FakePodman._version), ("/info", "GET", FakePodman._info),
    ("/images/pull", "POST", FakePodman._pull), ("/images/([^/]+)/json", "GET", FakePodman._image),
    ("/images/json", "GET", FakePodman._list_images), ("/images/([^/]+)", "DELETE", FakePodman._remove_image),
    ("/images/([^/]+)/exists", "GET", FakePodman._image_exists),
    ("/containers/create", "POST", FakePodman._create), ("/containers/json", "GET", FakePodman._list),
    ("/containers/([^/]+)/json", "GET", FakePodman._inspect),
    ("/containers/([^/]+)/start", "POST", FakePodman._start), ("/containers/([^/]+)/stop", "POST", FakePodman._stop),
    ("/containers/([^/]+)/unpause", "POST", FakePodman._unpause),
    ("/containers/([^/]+)", "DELETE", FakePodman._remove), ("/containers/([^/]+)/exec", "POST", FakePodman._exec),
    ("/containers/([^/]+)/logs", "GET", FakePodman._logs), ("/exec/([^/]+)/start", "POST", FakePodman._logs),
    ("/exec/([^/]+)/json", "GET", FakePodman._state), ("/networks/create", "POST", FakePodman._make_network),
    ("/networks/([^/]+)/exists", "GET", FakePodman._network_exists), ("/networks/([^/]+)", "GET", FakePodman._network),
    ("/networks/([^/]+)", "DELETE", FakePodman._remove_network),
    ("/volumes/([^/]+)", "DELETE", FakePodman._remove_volume)]


def _missing(what: str) -> bytes:
    return reply({"cause": f"no such {what}", "message": f"no such {what}"}, 404)


class _Server(socketserver.ThreadingMixIn, socketserver.UnixStreamServer):
    daemon_threads = True
    request_queue_size = 64
    podman: FakePodman


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _Server  # type: ignore[assignment]

    def _serve(self) -> None:
        podman = self.server.podman
        url = urllib.parse.urlsplit(self.path)
        path = url.path.partition("/libpod")[2] or url.path
        content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        fault = podman.fault(self.command, path)
        if fault == "hang":
            podman.released.wait(20)
            return
        answer = fault if isinstance(fault, bytes) else podman.answer(
            self.command, path, dict(urllib.parse.parse_qsl(url.query)), json.loads(content) if content else None,
            fault == "lie")
        with contextlib.suppress(OSError):
            self.wfile.write(answer)

    do_GET = do_POST = do_DELETE = _serve

    def address_string(self) -> str:
        return "unix"

    def log_message(self, *_words: Any) -> None:
        """Log no request."""
