"""A simulated host: settings, disk, processes, power and network cable."""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import uuid
from collections.abc import Mapping, Sequence

from tools.hosts import cgroups
from tools.hosts.running import HostError, Running, eventually
from tools.hosts.switch import Switch

_HERE = pathlib.Path(__file__).parent
_ETC = ("etc/libvirt", "var/lib/libvirt", "var/cache/libvirt", "var/log/libvirt")
_LIBVIRTD = """\
auth_unix_rw = "none"
unix_sock_rw_perms = "0700"
listen_tls = 0
listen_tcp = 1
listen_addr = "{address}"
auth_tcp = "none"
host_uuid = "{uuid}"
log_outputs = "2:file:/var/log/libvirt/libvirtd.log"
"""
_QEMU = 'migration_host = "{address}"\nmigration_address = "{address}"\n'


@dataclasses.dataclass
class Host(Running):
    """A host. ``binds``: bind mounts (source, target). ``kvm``: guests may use /dev/kvm."""

    directory: pathlib.Path
    number: int
    name: str
    address: str
    kvm: bool = False
    binds: list[tuple[str, str]] = dataclasses.field(default_factory=list)

    @classmethod
    def load(cls, directory: pathlib.Path) -> Host:
        values = json.loads((directory / "host.json").read_text())
        return cls(directory=directory, **{**values, "binds": [tuple(pair) for pair in values["binds"]]})

    def prepare(self) -> None:
        """Create the disk of the host; an existing disk is kept."""
        for name in (*_ETC, "etc"):
            (self.directory / "disk" / name).mkdir(parents=True, exist_ok=True)
        for source, target in self.binds:
            for path in (source, target):
                pathlib.Path(path).mkdir(parents=True, exist_ok=True)
        etc = self.directory / "disk/etc"
        if not (etc / "machine-id").exists():
            (etc / "machine-id").write_text(f"{uuid.uuid4().hex}\n")
        identity = str(uuid.UUID((etc / "machine-id").read_text().strip()))
        (etc / "libvirt/libvirtd.conf").write_text(_LIBVIRTD.format(address=self.address, uuid=identity))
        (etc / "libvirt/qemu.conf").write_text(_QEMU.format(address=self.address))
        values = dataclasses.asdict(self)
        del values["directory"]
        (self.directory / "host.json").write_text(json.dumps(values))

    def write_hosts_file(self, names: Mapping[str, str]) -> None:
        """Write /etc/hosts of the host; ``names``: host name by address."""
        lines = ["127.0.0.1 localhost", *(f"{address} {name}" for address, name in names.items())]
        (self.directory / "disk/etc/hosts").write_text("\n".join(lines) + "\n")

    @property
    def group(self) -> str:
        """Return the name of the cgroups, unique even if sites have the same name (in devstack: "hosts")."""
        site = self.directory.parent
        return f"{site.name}-{hashlib.sha256(str(site).encode()).hexdigest()[:6]}.{self.directory.name}"

    def boot_environment(self) -> dict[str, str]:
        return {"HOST": str(self.directory), "HOST_NAME": self.name, "HOST_KVM": "yes" if self.kvm else "no",
                "HOST_BINDS": "\n".join(f"{source} {target}" for source, target in self.binds)}

    # --- commands for a supervisor -----------------------------------------------------------------
    def power_command(self) -> list[str]:
        """Return the command that keeps the host on while it runs; the host is usable once :attr:`pid` is set."""
        return [sys.executable, str(_HERE / "power.py"), "host", str(self.directory)]

    def command(self, *argv: str) -> list[str]:
        """Return the command line that runs ``argv`` on the host."""
        return [sys.executable, str(_HERE / "enter.py"), str(self.directory), *argv]

    def libvirt_commands(self) -> dict[str, list[str]]:
        """Return the command lines of the libvirt daemons, in start order."""
        return {"virtlogd": self.command("virtlogd"), "libvirtd": self.command("libvirtd", "--listen")}

    def run(self, argv: Sequence[str], *, timeout: float = 60.0, check: bool = True, text: str | None = None) -> str:
        """Run a command on the host and return its output. Raises HostError if it fails or exceeds the timeout."""
        try:
            done = subprocess.run(self.command(*argv), input=text, capture_output=True, text=True, timeout=timeout,
                                  check=False, cwd="/")
        except subprocess.TimeoutExpired as error:
            raise HostError(f"{self.name}: {' '.join(argv)} took more than {timeout:g} s") from error
        if check and done.returncode != 0:
            raise HostError(f"{self.name}: {' '.join(argv)} failed ({done.returncode}): {done.stderr.strip()}")
        return done.stdout

    # --- its processes --------------------------------------------------------------------------------
    def processes(self) -> dict[int, str]:
        """Return the processes of the host: names by pid of the outer namespace."""
        pid = self.pid
        names: dict[int, str] = {}
        if pid is None:
            return names
        here = os.readlink(f"/proc/{pid}/ns/pid")
        for process in pathlib.Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                if os.readlink(process / "ns" / "pid") == here:
                    names[int(process.name)] = (process / "comm").read_text().strip()
        return names

    def power_off(self) -> None:
        """Simulate a power loss: all processes end at once, and their last packets are not sent."""
        if self.pid is not None:
            self._switch().unplug(self.number)
        self.kill()  # the kernel ends the pid namespace with its first process

    def freeze(self) -> None:
        """Stop all processes of the host; its kernel, and so its network, still responds."""
        eventually(lambda: self._signal(signal.SIGSTOP), f"{self.name} does not freeze")

    def thaw(self) -> None:
        self._signal(signal.SIGCONT)

    def _signal(self, number: int) -> bool:
        """Signal all processes except the first; return True if no process needed the signal."""
        done = True
        for process in self.processes().keys() - {self.pid}:
            with contextlib.suppress(OSError, IndexError):
                state = pathlib.Path(f"/proc/{process}/stat").read_text(errors="replace").rpartition(")")[2].split()[0]
                if (state == "T") != (number == signal.SIGSTOP) and state not in "ZX":
                    done = False
                    os.kill(process, number)
        return done

    # --- its cable -------------------------------------------------------------------------------------
    def cut(self) -> None:
        """Disconnect the network cable: packets in both directions are lost silently."""
        self._switch().set_link(self.number, "down")

    def mend(self) -> None:
        self._switch().set_link(self.number, "up")

    def _switch(self) -> Switch:
        return Switch.load(self.directory.parent / "switch")

    def remove(self) -> None:
        """Remove the host with its disk."""
        self.power_off()
        cgroups.remove(self.group)
        shutil.rmtree(self.directory)

