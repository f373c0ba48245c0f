"""A cluster with real compute hosts: QEMU guests with the small guest image."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Iterator, Sequence
from typing import Any

from tests.integration.cluster import Cluster, Options
from tests.integration.guest_shell import GuestShell
from tests.integration.hosts.two_hosts import RealHost, RealHosts
from tests.integration.processes import eventually
from tests.integration.rabbit import Rabbit

# Seconds until a guest with an emulated CPU has booted on a loaded machine.
BOOT = 120.0


class RealCloud:
    """The cluster and its images: ``trio`` has kernel, ramdisk and machine image, ``disk`` is a bootable disk."""

    def __init__(self, nova: Cluster, hosts: RealHosts, instances: pathlib.Path, image: pathlib.Path) -> None:
        self.nova, self.api = nova, nova.api
        self.hosts, self.instances = hosts, instances
        self._wide: list[dict[str, str]] = []
        nova.flavor("guest", ram=128, disk=1)
        kernel = nova.import_image(image / "vmlinuz", "kernel", "aki")
        ramdisk = nova.import_image(image / "initrd.gz", "ramdisk", "ari")
        self.trio = nova.import_image(image / "rootfs.img", "trio", "ami", kernel_id=kernel, ramdisk_id=ramdisk)
        self.disk = nova.import_image(image / "nova-guest.qcow2", "disk", "qcow2")

    # --- servers -------------------------------------------------------------------------------------
    def boot(self, name: str, image: str, *, on: RealHost | None = None, **fields: Any) -> str:
        if on is not None:
            fields["availability_zone"] = f"nova:{on.name}"
        return self.api.boot(name, imageRef=image, flavorRef="guest", **fields)

    def booted(self, name: str, image: str = "", *, on: RealHost | None = None, **fields: Any) -> str:
        """Boot a server (from the bootable disk, on the first host) and wait for its guest.

        The guest has a note on its disk (see :meth:`note`).
        """
        uuid = self.boot(name, image or self.disk, on=on or self.hosts.hosts[0], **fields)
        self.api.wait(uuid, "ACTIVE", BOOT)
        with self.shell(uuid) as shell:
            shell.run(f"echo {name} > note; sync")
        return uuid

    def note(self, uuid: str) -> str:
        """Return the note on the disk of a server of booted(): the server's name, if the disk is the original one."""
        with self.shell(uuid) as shell:
            return shell.run("cat note").strip()

    def console(self, uuid: str) -> str:
        """Return the guest's output, or "" while its host does not answer (503) or is down (409)."""
        answer = self.api.request("POST", f"/servers/{uuid}/action", {"os-getConsoleOutput": {}})
        assert answer.status_code in (200, 409, 503), answer.text
        return str(answer.json()["output"]) if answer.status_code == 200 else ""

    def wait_for_login(self, uuid: str, name: str, count: int = 1) -> None:
        """Wait for the ``count``th login prompt of the guest, with the host name from the metadata."""
        eventually(lambda: self.console(uuid).count(f"{name} login:") >= count, BOOT, f"{name} shows a login prompt",
                   interval=0.5)

    def host_of(self, uuid: str) -> RealHost:
        """Return the host of the server as recorded by Nova."""
        name = self.api.show(uuid)["OS-EXT-SRV-ATTR:host"]
        return next(host for host in self.hosts.hosts if host.name == name)

    @property
    def own_instances(self) -> pathlib.Path | None:
        """Return the directory of guests' disks, or None if other hosts share it."""
        return None if self.instances.is_relative_to(self.hosts.site.shared) else self.instances

    def address(self, uuid: str) -> str:
        """Return the first address of the server."""
        return str(next(iter(self.api.show(uuid)["addresses"].values()))[0]["addr"])

    def wide_network(self) -> list[dict[str, str]]:
        """Return a network that spans all hosts, as ``networks`` of a server."""
        if not self._wide:
            made = self.nova.manage("network", "create", "--name", "wide", "--cidr", "10.90.0.0/24", "--vni", "0")
            self._wide = [{"uuid": made.strip()}]
        return self._wide

    def shell(self, uuid: str) -> GuestShell:
        """Return the guest's shell on the host recorded by Nova; entering it waits for the boot."""
        return GuestShell(self.host_of(uuid), self.api.show(uuid)["OS-EXT-SRV-ATTR:instance_name"])

    def nothing_left(self) -> None:
        """Delete all servers and check that neither database nor hosts have anything left of them."""
        self.nova.delete_all(60)
        for host in self.hosts.hosts:
            eventually(lambda host=host: not host.leftovers(self.instances), 10,
                       f"no files of guests are left on {host.name}: {host.leftovers(self.instances)}")
        self.nova.audit()

    # --- hosts ---------------------------------------------------------------------------------------
    def lose_power(self, host: RealHost) -> None:
        """Switch off the host with all its processes; for Nova the host stops reporting."""
        host.power_off()
        self.nova.kill(f"compute-{host.name}", f"metadata-{host.name}")

    def wait_down(self, host: RealHost) -> None:
        """Wait until Nova reports the host as down."""
        def look() -> bool:
            found = self.api.get(f"/os-services?binary=nova-compute&host={host.name}")["services"]
            return [service["state"] for service in found] == ["down"]

        eventually(look, 60, f"{host.name} is reported as down", interval=0.5)

    def return_power(self, host: RealHost) -> None:
        """Boot the host and start its services; its guests are defined on its disk, but not running."""
        host.power_on()
        self.nova.start(f"compute-{host.name}", f"metadata-{host.name}")


@contextlib.contextmanager
def real_cloud(rabbit: Rabbit, hosts: RealHosts, image: pathlib.Path, database: str | None = None, *,
               shared: bool = False, options: Options | None = None, token: str = "",
               proxies: Sequence[str] = ()) -> Iterator[RealCloud]:
    """Start all services of Nova with these hosts.

    ``shared``: the hosts share the directory of the guests' disks. ``token``: of the user, if Keystone is used.
    """
    instances = (hosts.site.shared if shared else hosts.site.state) / "instances"
    sections = {name: dict(values) for name, values in hosts.options().items()}
    for name, values in (options or {}).items():
        sections.setdefault(name, {}).update(values)
    url = rabbit.new_vhost()
    try:
        cluster = Cluster(url, database, computes=0, conductors=1, schedulers=1, options=sections,
                          places=hosts.places(rabbit, url, instances), proxies=proxies,
                          parent=str(hosts.site.directory))
        if token:
            cluster.api.sign_in(token)
        with cluster as nova:
            yield RealCloud(nova, hosts, instances, image)
    finally:
        hosts.clear(instances)
