"""Archives of container images for whole clusters on this machine: images of busybox, made without a container engine,
and images of tools/images."""

import hashlib
import io
import json
import pathlib
import tarfile
from collections.abc import Mapping

PAUSE = "lab.local/pause:1"
# A shell that runs as process 1 must handle SIGTERM; otherwise each deletion of a pod takes the whole grace period.
_SERVER = "trap 'exit 0' TERM INT; httpd -f -p 8080 -h /www & wait $!"
_IMAGES = {PAUSE: ("pause", "trap 'exit 0' TERM INT; while :; do sleep 3600 & wait $!; done"),
           "lab.local/web:1": ("1", _SERVER), "lab.local/web:2": ("2", _SERVER)}  # port 8080 returns the version
_COMMANDS = ("sh", "sleep", "httpd", "wget", "cat", "ls", "echo", "env", "hostname", "kill", "ps", "sync", "nc", "true",
             "false", "date", "mkdir", "rm", "touch", "grep")


def write_images(busybox: pathlib.Path, target: pathlib.Path) -> None:
    """Write lab.local/pause:1, web:1 and web:2 to a Docker archive, atomically. ``busybox``: a static program."""
    draft = target.with_suffix(".new")
    manifest = []
    with tarfile.open(draft, "w") as archive:
        for tag, (version, command) in _IMAGES.items():
            layer = _layer(busybox.read_bytes(), version)
            digest = hashlib.sha256(layer).hexdigest()
            config = json.dumps({
                "architecture": "amd64", "os": "linux", "history": [{"created_by": "nova"}],
                "config": {"Cmd": ["/bin/sh", "-c", command], "Env": ["PATH=/bin"], "WorkingDir": "/"},
                "rootfs": {"type": "layers", "diff_ids": [f"sha256:{digest}"]}}).encode()
            name = f"{hashlib.sha256(config).hexdigest()}.json"
            _add(archive, f"{digest}/layer.tar", layer)
            _add(archive, name, config)
            manifest.append({"Config": name, "RepoTags": [tag], "Layers": [f"{digest}/layer.tar"]})
        _add(archive, "manifest.json", json.dumps(manifest).encode())
    draft.replace(target)


def write_archive(layout: pathlib.Path, names: Mapping[str, str], target: pathlib.Path) -> None:
    """Write images of an OCI layout to an archive that containerd imports. ``names``: name in the layout -> name in
    containerd, both with tags. Raises KeyError if the layout has no such image."""
    blobs, entries = layout / "blobs/sha256", {}
    for entry in json.loads((layout / "index.json").read_bytes())["manifests"]:
        entries[entry["annotations"]["org.opencontainers.image.ref.name"]] = entry
    digests, manifests = set(), []
    for name, reference in names.items():
        entry = entries[name]
        manifest = json.loads((blobs / entry["digest"].removeprefix("sha256:")).read_bytes())
        digests |= {blob["digest"] for blob in (entry, manifest["config"], *manifest["layers"])}
        manifests.append({**entry, "annotations": {"io.containerd.image.name": reference}})
    with tarfile.open(target, "w") as archive:
        _add(archive, "oci-layout", b'{"imageLayoutVersion": "1.0.0"}')
        _add(archive, "index.json", json.dumps({"schemaVersion": 2, "manifests": manifests}).encode())
        for digest in sorted(digests):
            name = digest.removeprefix("sha256:")
            archive.add(blobs / name, f"blobs/sha256/{name}")


def _layer(busybox: bytes, version: str) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as layer:
        for name in ("bin", "tmp", "www", "etc", "proc", "sys", "dev"):
            directory = tarfile.TarInfo(name)
            directory.type, directory.mode = tarfile.DIRTYPE, 0o1777 if name == "tmp" else 0o755
            layer.addfile(directory)
        _add(layer, "bin/busybox", busybox, 0o755)
        for name in _COMMANDS:
            link = tarfile.TarInfo(f"bin/{name}")
            link.type, link.linkname = tarfile.SYMTYPE, "busybox"
            layer.addfile(link)
        _add(layer, "etc/passwd", b"root:x:0:0:root:/:/bin/sh\n")
        _add(layer, "www/index.html", f"{version}\n".encode())
    return buffer.getvalue()


def _add(archive: tarfile.TarFile, name: str, data: bytes, mode: int = 0o644) -> None:
    entry = tarfile.TarInfo(name)
    entry.size, entry.mode = len(data), mode
    archive.addfile(entry, io.BytesIO(data))
