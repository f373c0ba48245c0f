"""Reproducible layers and images of the Open Container Initiative (OCI).

    oci.py pack ROOT PATH… --tar OUT        these paths below ROOT as a tar file
    oci.py subtract BASE FULL --tar OUT     files of FULL that BASE lacks (tar files; BASE may be -)
    oci.py compress TAR --layout DIRECTORY  add the tar file as a layer; prints its descriptor
    oci.py image FILE --layout DIRECTORY    add an image (FILE: its description in JSON); prints its digest
    oci.py push NAME:TAG --layout DIRECTORY --registry HOST:PORT [--tag TAG …]

Times are SOURCE_DATE_EPOCH, owners are numeric, names are sorted. Needs only the standard library of Python.
"""

from __future__ import annotations

import argparse
import contextlib
import gzip
import hashlib
import http.client
import io
import json
import os
import pathlib
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

LAYER = "application/vnd.oci.image.layer.v1.tar+gzip"
CONFIG = "application/vnd.oci.image.config.v1+json"
MANIFEST = "application/vnd.oci.image.manifest.v1+json"
INDEX = "application/vnd.oci.image.index.v1+json"
_REFERENCE = "org.opencontainers.image.ref.name"
_BLOCK = 1 << 20
_LEVEL = 6  # of compression

Json = dict[str, Any]


# --- tar files -------------------------------------------------------------------------------------
def pack(root: pathlib.Path, paths: Iterable[str], out: pathlib.Path) -> None:
    """Write the paths, with their parent directories, to a tar file."""
    with tarfile.open(out, "w", format=tarfile.PAX_FORMAT) as tar:
        for path in paths:
            above = [root / parent for parent in _parents(path)]
            for place in (*reversed(above), *_tree(root / path)):
                member = tar.gettarinfo(place, str(place.relative_to(root)))
                if member.islnk():  # the first link may be outside of the paths
                    member.type, member.linkname, member.size = tarfile.REGTYPE, "", place.stat().st_size
                _put(tar, member, place.open("rb") if member.isreg() else None)


def _tree(place: pathlib.Path) -> Iterator[pathlib.Path]:
    yield place
    if place.is_dir() and not place.is_symlink():
        for child in sorted(place.iterdir()):
            yield from _tree(child)


def subtract(base: pathlib.Path | None, full: pathlib.Path, out: pathlib.Path) -> None:
    """Write the difference of two tar files: new and changed files, and whiteouts for files that ``full`` lacks.

    Parent directories are included: otherwise the runtime creates them with default modes.
    """
    with contextlib.ExitStack() as stack:
        former = stack.enter_context(tarfile.open(base)) if base else None
        latter = stack.enter_context(tarfile.open(full))
        tar = stack.enter_context(tarfile.open(out, "w", format=tarfile.PAX_FORMAT))
        old, new = _members(former) if former else {}, _members(latter)
        removed = {name for name in old if name not in new and (_parent(name) in new or not _parent(name))}
        fresh = {name for name, member in new.items()
                 if former is None or name not in old or not _same(former, old[name], latter, member)}
        above = {parent for name in (*removed, *fresh) for parent in _parents(name)}
        for name in sorted(fresh | above):
            _put_again(tar, latter, name, new, fresh)
        for name in sorted(removed):
            _put(tar, tarfile.TarInfo(f"{_parent(name)}/.wh.{name.rpartition('/')[2]}".lstrip("/")), io.BytesIO())


def _put_again(tar: tarfile.TarFile, source: tarfile.TarFile, name: str, members: Mapping[str, tarfile.TarInfo],
               there: set[str]) -> None:
    member = members[name]
    content = source.extractfile(member) if member.isreg() or member.islnk() else None
    if member.islnk():
        target = _clean(member.linkname)
        if target in there and target < name:
            member.linkname, content = target, None
        else:
            member.type, member.linkname, member.size = tarfile.REGTYPE, "", members[target].size
    member.name = name
    _put(tar, member, content)


def _parent(name: str) -> str:
    return name.rpartition("/")[0]


def _parents(name: str) -> Iterator[str]:
    while name := _parent(name):
        yield name


def _members(tar: tarfile.TarFile) -> dict[str, tarfile.TarInfo]:
    """Return the members by name, without devices, which the runtime creates."""
    return {name: member for member in tar.getmembers()
            if (name := _clean(member.name)) and not (name + "/").startswith("dev/")}


def _clean(name: str) -> str:
    return os.path.normpath(name).strip("/") if name not in (".", "./") else ""


def _same(former: tarfile.TarFile, old: tarfile.TarInfo, latter: tarfile.TarFile, new: tarfile.TarInfo) -> bool:
    kind = [(tarfile.REGTYPE if member.islnk() else member.type) for member in (old, new)]
    if kind[0] != kind[1] or (old.mode, old.uid, old.gid) != (new.mode, new.uid, new.gid):
        return False
    if not (new.isreg() or new.islnk()):
        return old.linkname == new.linkname
    first, second = former.extractfile(old), latter.extractfile(new)
    return first is not None and second is not None and first.read() == second.read()


def _put(tar: tarfile.TarFile, member: tarfile.TarInfo, content: Any) -> None:
    member.mtime, member.uname, member.gname, member.pax_headers = epoch(), "", "", {}
    tar.addfile(member, content)
    if content is not None:
        content.close()


def epoch() -> int:
    return int(os.environ["SOURCE_DATE_EPOCH"])


# --- a layout: blobs by their digest ---------------------------------------------------------------
def compress(tar: pathlib.Path, layout: pathlib.Path) -> Json:
    """Compress a tar file as a layer; return its descriptor, with the digest of the uncompressed data (diff_id)."""
    whole, packed = hashlib.sha256(), hashlib.sha256()
    blobs = layout / "blobs" / "sha256"
    blobs.mkdir(parents=True, exist_ok=True)
    new = blobs / f".{tar.name}.{os.getpid()}"
    with tar.open("rb") as source, new.open("wb") as target:
        with gzip.GzipFile("", "wb", _LEVEL, target, mtime=0) as zipped:
            while block := source.read(_BLOCK):
                whole.update(block)
                zipped.write(block)
    with new.open("rb") as written:
        while block := written.read(_BLOCK):
            packed.update(block)
    new.rename(blobs / packed.hexdigest())
    return {"mediaType": LAYER, "digest": f"sha256:{packed.hexdigest()}",
            "size": (blobs / packed.hexdigest()).stat().st_size, "diff_id": f"sha256:{whole.hexdigest()}"}


def image(wanted: Json, layout: pathlib.Path) -> str:
    """Add an image to the layout; return its digest.

    ``wanted``: name, tag, layers (from :func:`compress`), created, and config (Entrypoint, User …).
    """
    layers = wanted["layers"]
    config = _blob(layout, CONFIG, {
        "created": wanted["created"], "architecture": wanted["architecture"], "os": "linux", "config": wanted["config"],
        "rootfs": {"type": "layers", "diff_ids": [layer["diff_id"] for layer in layers]},
        "history": [{"created": wanted["created"], "created_by": layer["name"]} for layer in layers]})
    manifest = _blob(layout, MANIFEST, {
        "schemaVersion": 2, "mediaType": MANIFEST, "config": config,
        "layers": [{key: layer[key] for key in ("mediaType", "digest", "size")} for layer in layers]})
    reference = f"{wanted['name']}:{wanted['tag']}"
    _update_index(layout, {**manifest, "annotations": {_REFERENCE: reference}})
    return str(manifest["digest"])


def _blob(layout: pathlib.Path, kind: str, content: Json) -> Json:
    text = json.dumps(content, sort_keys=True, separators=(",", ":")).encode()
    digest = hashlib.sha256(text).hexdigest()
    (layout / "blobs" / "sha256" / digest).write_bytes(text)
    return {"mediaType": kind, "digest": f"sha256:{digest}", "size": len(text)}


def _index(layout: pathlib.Path) -> list[Json]:
    file = layout / "index.json"
    return json.loads(file.read_text())["manifests"] if file.exists() else []


def _update_index(layout: pathlib.Path, manifest: Json) -> None:
    reference = manifest["annotations"][_REFERENCE]
    others = [entry for entry in _index(layout) if entry["annotations"][_REFERENCE] != reference]
    everything = sorted([*others, manifest], key=lambda entry: entry["annotations"][_REFERENCE])
    (layout / "oci-layout").write_text('{"imageLayoutVersion": "1.0.0"}')
    (layout / "index.json").write_text(json.dumps(
        {"schemaVersion": 2, "mediaType": INDEX, "manifests": everything}, indent=1))


# --- a registry ------------------------------------------------------------------------------------
class Registry:
    """A client of a registry on this machine, without TLS."""

    def __init__(self, address: str) -> None:
        host, _colon, port = address.rpartition(":")
        self._connection = http.client.HTTPConnection(host, int(port), timeout=300)

    def _ask(self, method: str, path: str, expected: tuple[int, ...], body: Any = None, **headers: str) -> Any:
        self._connection.request(method, path, body, {key.replace("_", "-"): value for key, value in headers.items()})
        answer = self._connection.getresponse()
        text = answer.read()
        if answer.status not in expected:
            raise SystemExit(f"{method} {path}: the registry returned {answer.status}: {text.decode(errors='replace')}")
        return answer

    def upload(self, repository: str, digest: str, file: pathlib.Path, elsewhere: str) -> None:
        """Upload a blob, unless it exists or can be mounted from repository ``elsewhere``."""
        if self._ask("HEAD", f"/v2/{repository}/blobs/{digest}", (200, 404)).status == 200:
            return
        query = f"?mount={digest}&from={elsewhere}" if elsewhere else ""
        answer = self._ask("POST", f"/v2/{repository}/blobs/uploads/{query}", (201, 202), b"")
        if answer.status == 201:
            return
        place = answer.getheader("Location")
        place = "/" + place.partition("//")[2].partition("/")[2] if "//" in place else place
        with file.open("rb") as body:
            self._ask("PUT", f"{place}{'&' if '?' in place else '?'}digest={digest}", (201,), body,
                      Content_Length=str(file.stat().st_size), Content_Type="application/octet-stream")

    def name(self, repository: str, tag: str, manifest: bytes) -> None:
        self._ask("PUT", f"/v2/{repository}/manifests/{tag}", (201,), manifest, Content_Type=MANIFEST)


def push(reference: str, layout: pathlib.Path, address: str, tags: Iterable[str]) -> None:
    """Push an image with its own tag and further ``tags``."""
    blobs = layout / "blobs" / "sha256"
    entry = next(entry for entry in _index(layout) if entry["annotations"][_REFERENCE] == reference)
    manifest = (blobs / entry["digest"].removeprefix("sha256:")).read_bytes()
    content, registry = json.loads(manifest), Registry(address)
    repository, _colon, tag = reference.rpartition(":")
    shared = _shared(layout)
    for blob in (*content["layers"], content["config"]):
        registry.upload(repository, blob["digest"], blobs / blob["digest"].removeprefix("sha256:"),
                        shared.get(blob["digest"], ""))
    for name in (tag, *tags):
        registry.name(repository, name, manifest)


def _shared(layout: pathlib.Path) -> dict[str, str]:
    """Return the repository of each layer that is pushed first."""
    repositories: dict[str, str] = {}
    for entry in _index(layout):
        content = json.loads((layout / "blobs" / "sha256" / entry["digest"].removeprefix("sha256:")).read_bytes())
        for layer in content["layers"]:
            repositories.setdefault(layer["digest"], entry["annotations"][_REFERENCE].rpartition(":")[0])
    return repositories


def pin(files: Sequence[pathlib.Path], layout: pathlib.Path, version: str, target: pathlib.Path) -> None:
    """Copy platform files to ``target``, with the digest of each image that the layout has in this version."""
    index = json.loads((layout / "index.json").read_text())
    digests = {entry["annotations"][_REFERENCE]: entry["digest"] for entry in index["manifests"]}
    target.mkdir(exist_ok=True)
    for file in files:
        lines = []
        for line in file.read_text().splitlines():
            lines.append(line)
            match = re.fullmatch(r"( +)image: [^/\s]+/(\S+)", line)
            if match and (digest := digests.get(f"{match[2]}:{version}")):
                lines.append(f"{match[1]}digest: {digest}")
        (target / file.name).write_text("\n".join(lines) + "\n")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("verb", choices=("pack", "subtract", "compress", "image", "push", "pin"))
    parser.add_argument("words", nargs="+")
    parser.add_argument("--tar", type=pathlib.Path)
    parser.add_argument("--layout", type=pathlib.Path)
    parser.add_argument("--registry", default="")
    parser.add_argument("--tag", action="append", default=[])
    given = parser.parse_args()
    first = pathlib.Path(given.words[0])
    if given.verb == "pack":
        pack(first, given.words[1:], given.tar)
    elif given.verb == "subtract":
        subtract(None if given.words[0] == "-" else first, pathlib.Path(given.words[1]), given.tar)
    elif given.verb == "compress":
        print(json.dumps(compress(first, given.layout)))
    elif given.verb == "image":
        print(image(json.loads(first.read_text()), given.layout))
    elif given.verb == "pin":
        version, target, *files = given.words
        pin([pathlib.Path(file) for file in files], given.layout, version, pathlib.Path(target))
    else:
        push(given.words[0], given.layout, given.registry, given.tag)
    return 0


if __name__ == "__main__":
    sys.exit(main())
