"""The deployment of etc/novad/nova.yaml in tests: its images, and access to it on a node."""

from __future__ import annotations

import contextlib
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Callable
from typing import Any

from nova.network.linux import netns
from tests.integration.novad.novad_node import Node, Registry
from tests.paths import ROOT
from tools.images import oci

# Build results are reused by the next run, as in build.sh.
OUTPUT = pathlib.Path(os.environ.get("NOVA_IMAGES", "/var/lib/nova-images"))
START = (ROOT / "tools/images/rootfs/nova/usr/local/bin/start").read_text()
IMAGES = ("database", "rabbitmq", "memcached", "keystone", "glance", "nova-conductor", "nova-scheduler", "nova-api",
          "nova-metadata", "nova-novncproxy", "nova-serialproxy", "nova-spicehtml5proxy", "nova-compute")
LONG = 900  # maximum duration of a full deployment on a busy machine, in seconds


def build(output: pathlib.Path = OUTPUT, **options: str) -> None:
    done = subprocess.run([ROOT / "tools/images/build.sh"], capture_output=True, text=True, check=False, timeout=3000,
                          env={**os.environ, "OUTPUT": str(output), "PUSH": "False", **options})
    assert done.returncode == 0, f"{done.stdout}\n{done.stderr}"


class Images(Registry):
    """A registry with the images of the deployment and images derived from them."""

    def __init__(self, directory: pathlib.Path) -> None:
        super().__init__(directory)
        self.layout = directory / "oci"
        shutil.copytree(OUTPUT / "oci", self.layout, copy_function=os.symlink, dirs_exist_ok=True,
                        ignore=lambda _place, names: {"index.json", "oci-layout"} & set(names))
        shutil.copy(OUTPUT / "oci/index.json", self.layout)
        self.version = re.search(r'__version__ = "(.*)"', (ROOT / "nova/__init__.py").read_text())[1]  # type: ignore
        for name in IMAGES:
            oci.push(f"nova/{name}:{self.version}", self.layout, self.host, ["stable"])

    def derive(self, name: str, tag: str, start: str) -> None:
        """Push an image with another start script as another version."""
        place = self.directory / tag
        (place / "usr/local/bin").mkdir(parents=True)
        (place / "usr/local/bin/start").write_text(start)
        (place / "usr/local/bin/start").chmod(0o755)
        os.environ.setdefault("SOURCE_DATE_EPOCH", "1577836800")
        oci.pack(place, ["usr"], self.directory / f"{tag}.tar")
        layer = oci.compress(self.directory / f"{tag}.tar", self.layout)
        manifest = self._blob(next(one["digest"] for one in json.loads((self.layout / "index.json").read_text())[
            "manifests"] if one["annotations"].popitem()[1] == f"nova/{name}:{self.version}"))
        config = self._blob(manifest["config"]["digest"])
        layers = [{**one, "diff_id": diff, "name": "known"} for one, diff in
                  zip(manifest["layers"], config["rootfs"]["diff_ids"], strict=True)]
        oci.image({"name": f"nova/{name}", "tag": tag, "layers": [*layers, {**layer, "name": tag}], "created": config[
            "created"], "architecture": config["architecture"], "config": config["config"]}, self.layout)
        oci.push(f"nova/{name}:{tag}", self.layout, self.host, [])

    def _blob(self, digest: str) -> Any:
        return json.loads((self.layout / "blobs/sha256" / digest.removeprefix("sha256:")).read_bytes())


class Suite:
    """The deployment on a node, and its administrator. ``namespace``: the network namespace of the node, if any."""

    def __init__(self, node: Node, name: str, keystone: str = "http://127.0.0.1:5000/v3", namespace: str = "") -> None:
        self.node, self.name, self.keystone, self.namespace = node, name, keystone, namespace

    def cloud(self) -> Any:
        import openstack

        return openstack.connect(
            auth_url=self.keystone, username="admin", password=(self.node.data / "secrets/admin").read_text(),
            project_name="admin", user_domain_name="Default", project_domain_name="Default", region_name="RegionOne",
            load_yaml_config=False, load_envvars=False)

    def ask(self, what: Callable[[Any], Any]) -> Any:
        """Return the response to a client on the node."""
        def asked() -> Any:
            with contextlib.closing(self.cloud()) as cloud:
                return what(cloud)

        return netns.call(self.namespace, asked) if self.namespace else asked()

    def sql(self, statement: str) -> list[str]:
        return self.node.podman("exec", f"{self.name}-database", "mariadb", "--no-defaults", "-S", "/tmp/mysqld.sock",
                                "-N", "-e", statement, "nova").split()

    def versions(self) -> dict[str, tuple[str, str]]:
        """Return the reported version and the state of each component."""
        rows = [[cell.strip() for cell in line.strip("|").split("|")]
                for line in self.node.nova("platform-info", "-f", "table").stdout.splitlines() if line.startswith("|")]
        return {row[0]: (row[1], row[2]) for row in rows[1:]}

    def tables(self) -> set[str]:
        return {name for name in self.sql("SHOW TABLES") if name.startswith(("release_", "half_"))}


def left(node: Node, name: str) -> list[str]:
    """Return leftovers of platform ``name`` on a node: containers, networks, and novad's records."""
    return [*node.podman("ps", "-a", "-q").split(),
            *re.findall(rf"{name}-\S+", node.podman("network", "ls")),
            *(str(path) for place in ("volumes", "secrets", "files") for path in (node.data / place).glob("*"))]
