"""Guests for tests of linuxnet: namespaces on veth pairs in place of libvirt's taps."""

from __future__ import annotations

import ipaddress
import json
import os
import shutil
import socket
import struct
import subprocess
import threading
import time
import uuid

import pytest

import nova.conf
from nova.conf import CONF
from nova.network.linux import netns, state_files
from nova.network.linux.driver import LinuxNetwork
from nova.objects.accounts.flavor import Flavor
from nova.objects.base import utcnow
from nova.objects.networks.network import VIF, FilterRule, FixedIp, RuleSet, slaac_address
from nova.objects.servers.instance import Instance
from tests.integration.network import dhcpv6
from tests.polling import poll

TOOLS = ("ip", "nft", "dnsmasq", "busybox")
needs_root = pytest.mark.skipif(
    os.geteuid() != 0 or not all(shutil.which(tool, path=os.environ["PATH"] + ":/usr/sbin:/sbin") for tool in TOOLS),
    reason="needs root, iproute2, nftables, dnsmasq and busybox")

SSH = FilterRule(protocol="tcp", from_port=22, to_port=22)
PING = FilterRule(protocol="icmp")
UDHCPC = """\
#!/bin/sh
env > {file}.new && mv {file}.new {file}.$1
if [ "$1" = bound ]; then
  ip address replace "$ip/$mask" dev "$interface"
  set -- $staticroutes
  while [ -n "$1" ]; do
    ip route replace "$1" via "$2" 2>/dev/null
    shift 2
  done
fi
"""


def sh(*argv, check=True, text=None, timeout=30):
    return subprocess.run(argv, capture_output=True, text=True, input=text, timeout=timeout, check=check)


def wait(condition, seconds=5):
    return poll(condition, seconds, 0.05)


class Net:
    """A network that creates instances. ``v6``: an IPv6 prefix of 64 bits, if any."""

    def __init__(self, cidr="10.77.0", v6=None, mode="slaac", **more):
        self.id = str(uuid.uuid4())
        self.prefix = cidr
        self.v6, self.mode = v6 and ipaddress.ip_network(f"{v6}::/64"), mode
        self.more = {"mtu": 1450, **more}
        self.bridge = "tbr" + self.id[:8]
        self.namespace = f"nova-{self.id[:12]}"

    def vif(self, number, **more):
        port = str(uuid.uuid4())
        mac = more.pop("mac", f"fa:16:3e:{port[:2]}:{port[2:4]}:{number:02x}")
        fixed_ips = [FixedIp(address=f"{self.prefix}.{number}", prefix=24, cidr=f"{self.prefix}.0/24",
                             gateway=f"{self.prefix}.1", mode="dhcp")]
        if self.v6:
            address = slaac_address(self.v6, mac) if self.mode == "slaac" else str(self.v6[number])
            fixed_ips.append(FixedIp(address=address, version=6, prefix=64, cidr=str(self.v6), gateway=str(self.v6[1]),
                                     mode=self.mode))
        return VIF(id=port, network_id=self.id, label="lab", mac=mac, fixed_ips=fixed_ips,
                   bridge=self.bridge, devname=f"tap{port[:11]}", **{**self.more, **more})

    def instance(self, number, hostname=None, **more):
        return instance([self.vif(number, **more)], hostname or f"guest{number}")


def instance(vifs, hostname="guest"):
    return Instance(uuid=str(uuid.uuid4()), project_id="p", user_id="u", display_name=hostname, hostname=hostname,
                    flavor=Flavor(flavorid="1", name="f", memory_mb=1, vcpus=1), created_at=utcnow(),
                    network_info=vifs)


def rules(*found, version=0):
    return RuleSet(version=version, rules=list(found))


class Guest:
    """A namespace that acts as the guest of one VIF."""

    def __init__(self, vif, folder):
        self.vif = vif
        self.folder = folder
        self.ns = "tg" + vif.id[:8]
        sh("ip", "netns", "add", self.ns)
        sh("ip", "link", "add", vif.devname, "type", "veth", "peer", "name", "eth0", "netns", self.ns)
        sh("ip", "-n", self.ns, "link", "set", "eth0", "address", vif.mac, "mtu", str(vif.mtu), "up")
        sh("ip", "-n", self.ns, "link", "set", "lo", "up")
        sh("ip", "link", "set", vif.devname, "master", vif.bridge, "mtu", str(vif.mtu), "up")

    def remove(self):
        sh("ip", "link", "del", self.vif.devname, check=False)
        sh("ip", "netns", "del", self.ns, check=False)

    def run(self, *argv, check=False, timeout=30):
        return sh("ip", "netns", "exec", self.ns, *argv, check=check, timeout=timeout)

    def dhcp(self, tries=3, name=None):
        """Return the offer of the DHCP server, or None. ``name``: the host name sent by the guest."""
        file, script = self.folder / f"{self.ns}.env", self.folder / f"{self.ns}.sh"
        script.write_text(UDHCPC.format(file=file))
        script.chmod(0o755)
        bound = self.folder / f"{self.ns}.env.bound"
        bound.unlink(missing_ok=True)
        self.run("busybox", "udhcpc", "-i", "eth0", "-n", "-q", "-f", "-t", str(tries), "-T", "1", "-s", str(script),
                 "-O", "staticroutes", "-O", "mtu", *(["-x", f"hostname:{name}"] if name else []), timeout=30)
        if not bound.exists():
            return None
        return dict(line.split("=", 1) for line in bound.read_text().splitlines() if "=" in line)

    def static(self, gateway=None):
        """Configure the guest's address and default route statically."""
        fixed = self.vif.fixed_ips[0]
        sh("ip", "-n", self.ns, "address", "replace", f"{fixed.address}/{fixed.prefix}", "dev", "eth0")
        sh("ip", "-n", self.ns, "route", "replace", "default", "via", gateway or fixed.gateway)

    def pings(self, address, count=1):
        six = ["-6"] if ":" in address else []
        return self.run("busybox", "ping", *six, "-c", str(count), "-W", "1", address).returncode == 0

    def reaches(self, address, seconds=5):
        """Return True if pings are answered within a while."""
        deadline = time.monotonic() + seconds
        while not self.pings(address):
            if time.monotonic() > deadline:
                return False
        return True

    def addresses_v6(self, seconds=10):
        """Wait until the guest has global addresses that are not tentative, and return them."""
        deadline = time.monotonic() + seconds
        while True:
            shown = json.loads(self.run("ip", "-6", "-json", "address", "show", "dev", "eth0").stdout)
            found = [info["local"] for device in shown for info in device.get("addr_info", [])
                     if info["scope"] == "global" and not info.get("tentative")]
            if found or time.monotonic() > deadline:
                return found
            time.sleep(0.1)

    def dhcp_v6(self, seconds=5, client=b"\0\3\0\1guest1"):
        """Configure and return the address assigned by the DHCPv6 server, or return None without a reply."""
        address = netns.call(self.ns, lambda: dhcpv6.ask(client, seconds))
        if address:
            sh("ip", "-n", self.ns, "address", "replace", f"{address}/64", "dev", "eth0", "nodad")
        return address

    def connects(self, address, port, timeout=3.0):
        return netns.call(self.ns, lambda: connects(address, port, timeout))

    def raw(self, frame):
        """Send one Ethernet frame as it is."""
        def send():
            with socket.socket(socket.AF_PACKET, socket.SOCK_RAW) as sock:
                sock.bind(("eth0", 0))
                sock.send(frame)
        netns.call(self.ns, send)


def connects(address, port, timeout=3.0):
    try:
        socket.create_connection((address, port), timeout).close()
    except OSError:
        return False
    return True


class Listener:
    """Accept TCP connections in a namespace (None: the root namespace) and record the peers."""

    def __init__(self, namespace, address, port, answer=b"hello"):
        def listen():
            sock = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((address, port))
            sock.listen(8)
            return sock
        self.sock = netns.call(namespace, listen) if namespace else listen()
        self.peers = []
        self.answer = answer
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self):
        while True:
            try:
                connection, peer = self.sock.accept()
            except OSError:
                return
            self.peers.append(peer[0])
            connection.sendall(self.answer)
            connection.close()

    def close(self):
        self.sock.shutdown(socket.SHUT_RDWR)
        self.sock.close()


class Lab:
    """A LinuxNetwork with its own state path, an external network behind its uplink, and guests."""

    def __init__(self, folder):
        self.folder = folder
        mark = uuid.uuid4().hex[:8]
        self.outside, self.uplink = f"to{mark}", f"tu{mark}"
        # Several labs may exist at the same time.
        link = f"198.19.{int(mark[:2], 16)}.{int(mark[2:4], 16) & 252}"
        base = ipaddress.ip_address(link)
        self.here, self.beyond = str(base + 1), str(base + 2)
        self.guests = []
        self.listeners = []
        self.networks = []
        sh("ip", "netns", "add", self.outside)
        sh("ip", "link", "add", self.uplink, "type", "veth", "peer", "name", "eth0", "netns", self.outside)
        sh("ip", "address", "add", f"{self.here}/30", "dev", self.uplink)
        sh("ip", "link", "set", self.uplink, "up")
        sh("ip", "-n", self.outside, "address", "add", f"{self.beyond}/30", "dev", "eth0")
        sh("ip", "-n", self.outside, "link", "set", "eth0", "up")
        sh("ip", "-n", self.outside, "link", "set", "lo", "up")
        nova.conf.register()
        CONF.set_override("state_path", str(folder / "state"))
        CONF.set_override("uplink_interface", self.uplink, group="network")
        self.tag = state_files.tag(CONF.state_path)
        self.driver = self.fresh()

    def fresh(self):
        """Return a new driver, as after a restart of the service."""
        driver = LinuxNetwork()
        self.networks.append(driver)
        return driver

    def guest(self, instance, number=0):
        made = Guest(instance.network_info[number], self.folder)
        self.guests.append(made)
        return made

    def booted(self, instance, rules=()):
        """Plug an instance and return its guest with its address configured."""
        self.driver.plug(instance, RuleSet(rules=list(rules)))
        guest = self.guest(instance)
        guest.static()
        return guest

    def listen(self, namespace, address, port, **more):
        self.listeners.append(Listener(namespace, address, port, **more))
        return self.listeners[-1]

    def close(self):
        for listener in self.listeners:
            listener.close()
        for guest in self.guests:
            guest.remove()
        for driver in self.networks:
            driver.stop()
        for uuid_ in self.driver.guests():
            self.driver.unplug_guest(uuid_)
        sh("ip", "link", "del", self.uplink, check=False)
        sh("ip", "netns", "del", self.outside, check=False)
        CONF.clear_override("state_path")
        CONF.clear_override("uplink_interface", group="network")

    def tables(self):
        return [line for line in sh("nft", "list", "tables").stdout.splitlines() if self.tag in line]


@pytest.fixture(name="lab")
def lab_fixture(tmp_path):
    made = Lab(tmp_path)
    yield made
    made.close()


def frame(source, target, kind, payload):
    """Return an Ethernet frame."""
    return bytes.fromhex(target.replace(":", "")) + bytes.fromhex(source.replace(":", "")) + kind + payload


def udp_packet(source, sport, dport):
    """Return a UDP packet to 10.77.0.6."""
    head = struct.pack("!BBHHHBBH4s4s", 0x45, 0, 32, 0, 0, 64, 17, 0, socket.inet_aton(source),
                       socket.inet_aton("10.77.0.6"))
    total = sum(struct.unpack("!10H", head))
    check = ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF
    return head[:10] + struct.pack("!H", check) + head[12:] + struct.pack("!HHHH", sport, dport, 12, 0) + b"evil"


def ear():
    sock = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.htons(3))
    sock.bind(("eth0", 3))
    sock.settimeout(2)
    return sock
