"""Config drives: the metadata of a guest as a small disk image. Two drives of an unchanged instance have the same
files in the same order; only the random seed differs."""

import logging
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable

from nova import exception
from nova.metadata import ec2, openstack
from nova.metadata.settings import MetadataSettings
from nova.objects.servers.instance import Instance

LOG = logging.getLogger(__name__)

LABEL = "config-2"
VFAT_BYTES = 64 * 1024 * 1024
TIMEOUT = 120  # seconds for one run of a tool


def files(instance: Instance, settings: MetadataSettings, admin_pass: str | None = None,
          random: Callable[[int], bytes] = os.urandom) -> dict[str, bytes]:
    """Return the content of all files on the drive by path."""
    contents: dict[str, bytes] = {}
    data = ec2.user_data(instance)
    for name in [*openstack.VERSIONS, "latest"]:
        version = openstack.resolve(name) or name
        for document in openstack.documents(version, data is not None, service=False):
            contents[f"openstack/{name}/{document}"] = openstack.body(
                document, instance, version, settings, admin_pass, random)
    for number in range(len(instance.personality)):
        contents[f"openstack/content/{number:04d}"] = openstack.content(instance, f"{number:04d}") or b""
    for name in [*ec2.VERSIONS, "latest"]:
        if name in settings.skip_versions:
            continue
        version = ec2.resolve(name) or name
        contents[f"ec2/{name}/meta-data.json"] = openstack.encode(
            _without_names(ec2.meta_data(instance, version, settings)))
        if data is not None:
            contents[f"ec2/{name}/user-data"] = data
    return contents


def build(instance: Instance, path: str, settings: MetadataSettings, admin_pass: str | None = None,
          format: str = "iso9660", mkisofs: str = "genisoimage",
          random: Callable[[int], bytes] = os.urandom) -> None:
    """Create the image file ``path``, replacing an existing file atomically. ``format``: iso9660, which requires
    ``mkisofs``, or vfat, which requires mtools. Raises NotSupported for other formats, ConfigDriveFailed if the tool is
    missing or fails, DiskFull."""
    if format not in ("iso9660", "vfat"):
        raise exception.NotSupported(f"Config drives of format {format} are not supported.")
    folder = os.path.dirname(os.path.abspath(path))
    os.makedirs(folder, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(dir=folder, prefix=".config-drive-") as work:
            root, image = os.path.join(work, "root"), os.path.join(work, "image")
            _write_tree(root, files(instance, settings, admin_pass, random), int(instance.created_at.timestamp()))
            if format == "iso9660":
                # Joliet and Rock Ridge: long file names for all operating systems.
                _run([mkisofs, "-quiet", "-o", image, "-ldots", "-allow-lowercase", "-allow-multidot", "-l",
                      "-publisher", "Nova", "-J", "-joliet-long", "-r", "-V", LABEL, root])
            else:
                _make_vfat(root, image)
            os.chmod(image, 0o600)
            os.replace(image, path)
    except OSError as error:
        LOG.error("[instance: %s] Cannot write the config drive, the operation fails: %s", instance.uuid, error)
        raise exception.DiskFull(reason=f"config drive: {error.strerror}") from error
    LOG.debug("[instance: %s] Created the config drive", instance.uuid)


def _write_tree(root: str, bodies: dict[str, bytes], when: int) -> None:
    for name, body in bodies.items():
        path = os.path.join(root, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb") as file:
            file.write(body)
    for folder, _folders, names in os.walk(root, topdown=False):
        for name in [*names, "."]:
            os.utime(os.path.join(folder, name), (when, when))


def _make_vfat(root: str, image: str) -> None:
    with open(image, "wb") as file:
        file.truncate(VFAT_BYTES)
    _run(["mformat", "-i", image, "-v", LABEL, "-T", str(VFAT_BYTES // 512), "-h", "64", "-s", "32", "::"])
    _run(["mcopy", "-s", "-m", "-i", image, *(os.path.join(root, name) for name in sorted(os.listdir(root))), "::/"])


def _run(argv: list[str]) -> None:
    search = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    program = shutil.which(argv[0], path=search)
    if program is None:
        raise exception.ConfigDriveFailed(reason=f"{argv[0]} is not installed on the host")
    try:
        done = subprocess.run([program, *argv[1:]], capture_output=True, text=True, timeout=TIMEOUT, check=False,
                              env={**os.environ, "PATH": search, "MTOOLS_SKIP_CHECK": "1"})
    except subprocess.TimeoutExpired as error:
        raise exception.ConfigDriveFailed(reason=f"{argv[0]} took longer than {TIMEOUT} seconds") from error
    if done.returncode != 0:
        LOG.error("Cannot create a config drive, the operation fails: %s exited with status %d: %s", argv[0],
                  done.returncode, done.stderr.strip())
        raise exception.ConfigDriveFailed(reason=f"{argv[0]} failed")


def _without_names(node: dict[str, object]) -> dict[str, object]:
    """Return the tree without the internal names that begin with an underscore."""
    return {name: _without_names(value) if isinstance(value, dict) else value
            for name, value in node.items() if not name.startswith("_")}
