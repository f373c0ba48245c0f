"""The switch that joins the hosts of a site: a bridge with a cable (veth pair) to each host that is on.

In its own namespace the switch is isolated from the machine, so that several sites may use the same addresses. In the
machine's namespace (devstack) the machine itself is the first host, with an address on the bridge. The other hosts have
a second cable for external connections of hosts and guests, which reaches neither the machine nor other hosts.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import pathlib
import subprocess
import sys
from collections.abc import Sequence

from tools.hosts.running import HostError, Running

# Names of the cables in a host: to the other hosts, and for external connections.
CABLE, OUTSIDE = "mgmt0", "wan0"


@dataclasses.dataclass
class Switch(Running):
    """The switch of a site.

    ``network``: the first three bytes of all addresses; ``outside``: those of the second cables. ``own``: the
    switch has its own namespace and no external connections.
    """

    directory: pathlib.Path
    network: str = "10.78.0"
    outside: str = "10.78.1"
    own: bool = True

    @classmethod
    def load(cls, directory: pathlib.Path) -> Switch:
        settings = directory / "switch.json"
        return cls(directory=directory, **(json.loads(settings.read_text()) if settings.exists() else {}))

    def save(self) -> None:
        self.directory.mkdir(parents=True, exist_ok=True)
        values = {"network": self.network, "outside": self.outside, "own": self.own}
        (self.directory / "switch.json").write_text(json.dumps(values))

    @property
    def address(self) -> str:
        """Return the address of the bridge, at which hosts reach processes outside of hosts (own) or the machine."""
        return f"{self.network}.{254 if self.own else 1}"

    @property
    def bridge(self) -> str:
        """Return the name of the bridge, unique per site; the names of devices and packet filters begin with it."""
        return f"nvh{hashlib.sha256(str(self.directory).encode()).hexdigest()[:6]}"

    def address_of(self, number: int) -> str:
        return f"{self.network}.{number}"

    def power_command(self) -> list[str]:
        """Return the command that keeps the switch on while it runs (needed only with its own namespace)."""
        return [sys.executable, str(pathlib.Path(__file__).with_name("power.py")), "switch", str(self.directory)]

    def usable(self) -> bool:
        return self.pid is not None if self.own else os.path.exists(f"/sys/class/net/{self.bridge}")

    def set_up(self, pid: int | None = None) -> None:
        """Create the bridge; ``pid``: a process in the namespace of the switch. Idempotent."""
        if self.own:
            _ip(_inside(pid), ["link set dev lo up", *_bridge(self.bridge, self.address)])
        elif not self.usable():
            self._set_up_outside()
            _ip([], _bridge(self.bridge, self.address))

    def take_down(self) -> None:
        """Remove what :meth:`set_up` made."""
        if self.own:
            self.kill()
            return
        for device in (self.bridge, f"{self.bridge}o"):
            _run(["ip", "link", "del", "dev", device], check=False)
        _run(["nft", "-f", "-"], f"add table ip {self.bridge}\ndelete table ip {self.bridge}\n")

    def plug(self, number: int, pid: int) -> None:
        """Connect host ``number``, whose first process is ``pid``, with new cables."""
        self.unplug(number)
        cables = [(self.bridge, CABLE, self.network, 0)]
        if not self.own:
            cables.append((f"{self.bridge}o", OUTSIDE, self.outside, 1))
        for bridge, end, network, kind in cables:
            port = f"{bridge}-{number}"
            card = f"02:6e:6f:76:{kind:02x}:{number:02x}"  # constant across reboots, since neighbours cache it
            _ip(self._inside(), [f"link add name {port} type veth peer name {end} address {card} netns {pid}",
                                 f"link set dev {port} master {bridge} up"])
            _ip(_inside(pid), [f"link set dev {end} up", f"address add {network}.{number}/24 dev {end}"])
        if not self.own:
            _ip(_inside(pid), [f"route add default via {self.outside}.1"])

    def unplug(self, number: int) -> None:
        """Remove the cables, if there are any."""
        if self.usable():
            for port in self._ports(number):
                _run([*self._inside(), "ip", "link", "del", "dev", port], check=False)

    def set_link(self, number: int, state: str) -> None:
        """Set the cables ``down`` (packets are lost) or ``up``."""
        _ip(self._inside(), [f"link set dev {port} {state}" for port in self._ports(number)])

    def _inside(self) -> list[str]:
        return _inside(int(self.netns.split("/")[2])) if self.own else []

    def _ports(self, number: int) -> list[str]:
        return [f"{self.bridge}-{number}"] + ([] if self.own else [f"{self.bridge}o-{number}"])

    def _set_up_outside(self) -> None:
        """Create the bridge for external connections, masqueraded behind the default route of the machine."""
        bridge = f"{self.bridge}o"
        _run(["ip", "link", "del", "dev", bridge], check=False)
        _ip([], _bridge(bridge, f"{self.outside}.1"))
        uplink = _uplink()
        for device in (bridge, *uplink):
            pathlib.Path(f"/proc/sys/net/ipv4/conf/{device}/forwarding").write_text("1")
        allowed = [f'iifname "{bridge}" oifname "{device}" accept' for device in uplink]
        hidden = [f'ip saddr {self.outside}.0/24 oifname "{device}" masquerade' for device in uplink]
        _run(["nft", "-f", "-"], "\n".join([
            f"add table ip {self.bridge}", f"delete table ip {self.bridge}", f"table ip {self.bridge} {{",
            *_chain("input", "filter hook input priority -10", [
                f'iifname "{bridge}" ct state established,related accept', f'iifname "{bridge}" drop']),
            *_chain("forwarding", "filter hook forward priority -10", [
                *allowed, f'iifname "{bridge}" drop', f'oifname "{bridge}" ct state established,related accept',
                f'oifname "{bridge}" drop']),
            *_chain("out", "nat hook postrouting priority 100", hidden), "}", ""]))


def _chain(name: str, hook: str, rules: Sequence[str]) -> list[str]:
    return [f"chain {name} {{", f"type {hook}; policy accept;", *rules, "}"]


def _bridge(name: str, address: str) -> list[str]:
    return [f"link add name {name} type bridge stp_state 0 forward_delay 0 mcast_snooping 0",
            f"link set dev {name} up", f"address add {address}/24 dev {name}"]


def _uplink() -> list[str]:
    """Return the interface of the default route in a list, empty without a default route."""
    with open("/proc/net/route", encoding="ascii") as table:
        routes = [line.split() for line in table.readlines()[1:]]
    return [route[0] for route in routes if route[1] == route[7] == "00000000"][:1]


def _inside(pid: int | None) -> list[str]:
    return [] if pid is None else ["nsenter", "-t", str(pid), "--net"]


def _ip(inside: Sequence[str], lines: Sequence[str]) -> None:
    _run([*inside, "ip", "-batch", "-"], "\n".join(lines) + "\n")


def _run(argv: Sequence[str], text: str | None = None, *, check: bool = True) -> None:
    done = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=30, check=False,
                          env={**os.environ, "PATH": os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"})
    if check and done.returncode != 0:
        raise HostError(f"{' '.join(argv)} failed ({done.returncode}): {done.stderr.strip()}\n{text or ''}")
