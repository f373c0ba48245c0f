"""tools/hosts: hosts made of namespaces behave like machines and are removed completely."""

from __future__ import annotations

import os
import pathlib
import signal
import subprocess
import sys
import time
from collections.abc import Iterator

import pytest

from tests.integration.guest_shell import GuestShell, count_in_background
from tests.integration.hosts.two_hosts import RealHost, RealHosts, needs_hosts, real_hosts
from tests.integration.processes import eventually
from tests.paths import ROOT
from tools.hosts import cgroups
from tools.hosts.site import Site, abandoned, sweep

pytestmark = [needs_hosts, pytest.mark.root]

_DOMAIN = """\
<domain type='qemu'><name>{name}</name><memory unit='MiB'>128</memory><vcpu>1</vcpu>
<os><type arch='x86_64' machine='pc'>hvm</type><kernel>{image}/vmlinuz</kernel><initrd>{image}/initrd.gz</initrd>
<cmdline>console=ttyS0 quiet</cmdline></os><features><acpi/></features><cpu mode='custom'><model>qemu64</model></cpu>
<devices><disk type='file' device='disk'><driver name='qemu' type='raw' cache='none'/><source file='{disk}'/>
<target dev='vda' bus='virtio'/></disk><serial type='pty'/><memballoon model='none'/></devices></domain>
"""
# Create a site with a running host and a process on it, to be abandoned when this program is killed.
_ABANDON = """
import subprocess, sys, time
from tools.hosts import Site
site = Site.temporary()
subprocess.Popen(site.switch.power_command())
host = site.add(1, "nova-host1")
subprocess.Popen(host.power_command())
host.run(["sh", "-c", "sleep 1000 > /dev/null 2>&1 &"])
print(site.directory, flush=True)
time.sleep(1000)
"""


@pytest.fixture(scope="module")
def hosts() -> Iterator[RealHosts]:
    with real_hosts(2) as made:
        yield made


@pytest.fixture
def pair(hosts: RealHosts) -> tuple[RealHost, RealHost]:
    first, second = hosts.hosts
    return first, second


def pings(source: RealHost, target: RealHost) -> bool:
    return " 1 received" in source.host.run(["ping", "-c", "1", "-W", "1", target.name], check=False)


def test_host_is_isolated_and_reaches_its_neighbour(pair: tuple[RealHost, RealHost]) -> None:
    first, second = pair
    assert first.host.run(["hostname"]) == "nova-host1\n"
    assert first.host.run(["ls", "/sys/class/net"]).split() == ["lo", "mgmt0"]
    commands = set(first.host.run(["ps", "-e", "-o", "comm="]).split())
    assert {"virtlogd", "libvirtd"} <= commands
    assert "switch" not in commands
    assert "python" not in " ".join(commands)
    assert not os.path.exists(f"/proc/{first.host.pid}/root/dev/kvm")
    assert first.virsh("hostname") != second.virsh("hostname")
    for name in ("/etc/machine-id", "/proc/sys/kernel/random/boot_id"):
        assert first.host.run(["cat", name]) != second.host.run(["cat", name])
    assert pings(first, second)
    groups = first.host.run(["cat", "/proc/self/cgroup"]).splitlines()
    assert {line.rpartition(":")[2] for line in groups} <= {f"/{cgroups.LEAF}", "/"}


def test_power_loss_kills_all_processes_and_keeps_the_disk(hosts: RealHosts, pair: tuple[RealHost, RealHost]) -> None:
    first, second = pair
    state, shared = hosts.site.state / "kept", hosts.site.shared / "kept"
    second.host.run(["sh", "-c", f"echo its > {state}; echo all > {shared}; setsid sleep 1000 > /dev/null 2>&1 &"])
    boot = second.host.run(["cat", "/proc/sys/kernel/random/boot_id"])
    mine = [pathlib.Path(f"/proc/{pid}") for pid in second.host.processes()]
    assert len(mine) >= 5
    second.power_off()
    assert not any(path.exists() for path in mine)
    assert not pings(first, second)
    assert not state.exists()
    second.power_on()
    assert second.host.run(["cat", str(state), str(shared)]) == "its\nall\n"
    assert second.host.run(["cat", "/proc/sys/kernel/random/boot_id"]) != boot
    eventually(lambda: pings(first, second), 10, "the host that returned is reached")


def test_host_with_a_cut_cable_is_unreachable(pair: tuple[RealHost, RealHost]) -> None:
    first, second = pair
    second.host.cut()
    try:
        assert not pings(first, second)
        assert second.virsh("uri") == "qemu:///system\n"
    finally:
        second.host.mend()
    eventually(lambda: pings(first, second), 10, "the host is reached again")


def test_hosts_reply_to_the_machine_but_cannot_connect_to_it(tmp_path: pathlib.Path) -> None:
    """The hosts of devstack need this, as servers have addresses behind them. The networks are private to this
    process."""
    network = f"10.{100 + os.getpid() // 256 % 100}.{os.getpid() % 256 & 254}"
    outside = f"{network.rsplit('.', 1)[0]}.{int(network.rsplit('.', 1)[1]) + 1}"
    site = Site.create(tmp_path / "site", own=False, network=network, outside=outside)
    ping = ["ping", "-c", "1", "-W", "2"]
    try:
        site.switch.set_up()
        host = site.add(2, "nova-outside")
        power = subprocess.Popen(host.power_command())
        try:
            eventually(lambda: host.pid is not None, 20, "the host has started")
            eventually(lambda: subprocess.run([*ping, f"{outside}.2"], check=False).returncode == 0, 10,
                       "the host replies to pings")
            assert " 0 received" in host.run([*ping, f"{outside}.1"], check=False)
        finally:
            power.terminate()
            power.wait(20)
    finally:
        site.remove()


@pytest.mark.slow
def test_frozen_host_runs_nothing_until_it_thaws(hosts: RealHosts, pair: tuple[RealHost, RealHost]) -> None:
    first, _second = pair
    ticks = hosts.site.shared / "ticks"
    first.host.run(["sh", "-c", f"(while :; do echo >> {ticks}; sleep 0.01; done) > /dev/null 2>&1 &"])
    eventually(ticks.exists, 10, "the process on the host is running")
    try:
        first.host.freeze()
        size = ticks.stat().st_size
        time.sleep(0.3)
        assert ticks.stat().st_size == size
    finally:
        first.host.thaw()
    eventually(lambda: ticks.stat().st_size > size, 10, "the process continues")
    assert first.virsh("uri")


@pytest.mark.parametrize("storage", ["shared", "copied"])
def test_guest_keeps_running_during_a_libvirt_migration(hosts: RealHosts, pair: tuple[RealHost, RealHost], storage: str,
                                                        guest_image: pathlib.Path) -> None:
    """Migrate with libvirt alone, to separate failures of the hosts from failures of Nova."""
    first, second = pair
    disk = (hosts.site.shared if storage == "shared" else hosts.site.state) / "disk.img"
    definition = hosts.site.shared / f"{storage}.xml"
    definition.write_text(_DOMAIN.format(name=storage, image=guest_image, disk=disk))
    first.host.run(["cp", str(guest_image / "rootfs.img"), str(disk)])
    if storage == "copied":
        second.host.run(["truncate", "-s", str((guest_image / "rootfs.img").stat().st_size), str(disk)])
    first.virsh("create", str(definition))
    with GuestShell(first, storage) as shell:
        shell.run(count_in_background("sleep 0.1"))
        before = int(shell.run("cat /tmp/count"))
    # libvirt does not know that the hosts share this directory
    how = ["--unsafe"] if storage == "shared" else ["--copy-storage-all"]
    first.virsh("migrate", "--live", "--p2p", *how, storage, f"qemu+tcp://{second.name}/system", timeout=120)
    assert (storage in first.domains(), storage in second.domains()) == (False, True)
    with GuestShell(second, storage) as shell:
        shell.run("kill -0 $(cat /tmp/pid)")
        after = int(shell.run("cat /tmp/count"))
        eventually(lambda: int(shell.run("cat /tmp/count")) > after, 20, "the guest continues to count")
        assert after >= before
    second.virsh("destroy", storage)


def test_site_of_a_killed_process_is_removed_by_sweep() -> None:
    owner = subprocess.Popen([sys.executable, "-c", _ABANDON], stdout=subprocess.PIPE, text=True, cwd=ROOT,
                             stderr=subprocess.DEVNULL)
    try:
        assert owner.stdout is not None
        directory = pathlib.Path(owner.stdout.readline().strip())
        assert directory not in {site.directory for site in abandoned()}
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.wait(10)
    assert directory in {site.directory for site in abandoned()}
    assert sweep() == []
    assert not directory.exists()
    left = subprocess.run(["pgrep", "-f", str(directory)], capture_output=True, text=True, check=False).stdout
    assert left == ""
    assert not [path for place in cgroups.hierarchies() for path in place.glob(f"{directory.name}*")]
