"""Several hosts with linuxnet, their conductor, and guests that move between hosts.

A guest is a namespace outside of all hosts, with a cable to one of them. Its processes keep running when the cable is
moved to another host, as in a live migration.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import subprocess
import sys
import threading

import msgspec

import nova.conf
from nova.conductor.endpoints.by_hosts import NetworkHosts
from nova.conductor.endpoints.networks import Networks
from nova.db.maintenance import migrate
from nova.objects.networks.network import Network, RuleSet
from tests.integration.network import linuxnet_lab
from tests.integration.network.linuxnet_lab import sh
from tests.integration.processes import Process, eventually
from tests.paths import ROOT
from tests.unit.conductor.books import Books, ctx
from tools.hosts import Site
from tools.hosts.site import sweep


class Conductor(Books):
    """A conductor whose messages reach the hosts, except ``deaf`` ones."""

    def __init__(self, url):
        super().__init__(url)
        self.hosts = {}
        self.deaf = set()
        self.told = []

    def compute_at(self, host):
        return _Proxy(self, host)


class _Proxy:
    def __init__(self, core, host):
        self.core, self.host = core, host

    def refresh_peers(self, _ctx, peers):
        self.core.told.append((self.host, peers))
        if self.host not in self.core.deaf and self.host in self.core.hosts:
            self.core.hosts[self.host].do("refresh_peers", peers=peers)


class Host:
    """A running host and its agent."""

    def __init__(self, core, host, power, state):
        self.core, self.host, self.name = core, host, host.name
        self._power, self._state = power, state
        self.asked = []
        self._numbers = itertools.count(1)
        self._waiting = {}
        self._start()

    def _start(self):
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self.agent = subprocess.Popen(
            self.host.command(sys.executable, "-m", "tests.integration.network.linuxnet_agent", self.name,
                              str(self._state), self.host.address),
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment, cwd="/")
        threading.Thread(target=self._listen, args=(self.agent,), daemon=True).start()

    def restart(self, *instances):
        """Restart the service; guests and networks continue."""
        self.agent.kill()
        self.agent.wait()
        self._start()
        self.do("start", instances=list(instances))

    def _listen(self, agent):
        for line in agent.stdout:
            message = json.loads(line)
            if "ask" in message:
                threading.Thread(target=self._answer, args=(agent, message), daemon=True).start()
            else:
                event, answer = self._waiting[message["done"]]
                answer.update(message)
                event.set()

    def _answer(self, agent, message):
        if message["what"] == "present":
            self.asked.append(message["args"])
        answer = getattr(self.core.desk, message["what"])(ctx(), **message["args"])
        self._say(agent, {"answered": message["ask"], "answer": msgspec.to_builtins(answer)})

    def _say(self, agent, message):
        with contextlib.suppress(BrokenPipeError):
            agent.stdin.write(json.dumps(message) + "\n")
            agent.stdin.flush()

    def do(self, what, **args):
        """Call a function in the agent and return its result."""
        number = next(self._numbers)
        event, answer = self._waiting[number] = threading.Event(), {}
        self._say(self.agent, {"id": number, "do": what, "args": msgspec.to_builtins(args)})
        assert event.wait(30), f"{self.name} did not complete {what} within 30 s"
        assert answer["error"] is None, answer["error"]
        return answer["answer"]

    def run(self, *argv, **more):
        return self.host.run(argv, **more)

    def targets(self, net):
        """Return the VXLAN broadcast destinations of the network on this host."""
        device = f"nvx{net.id.replace('-', '')[:11]}"
        shown = json.loads(self.run("bridge", "-json", "fdb", "show", "dev", device, check=False) or "[]")
        return {entry["dst"] for entry in shown if entry["mac"] == "00:00:00:00:00:00"}

    def traces(self):
        """Return links, namespaces and nftables tables of the host."""
        links = {line.split(":")[1].strip().split("@")[0] for line in self.run("ip", "-o", "link").splitlines()}
        return links - {"lo", "mgmt0"}, self.run("ip", "netns", "list"), self.run("nft", "list", "tables")

    def close(self):
        self.agent.kill()
        self.agent.wait()


class Guest(linuxnet_lab.Guest):
    """A guest with its cable plugged into ``host``."""

    def __init__(self, vif, folder, host):
        self.vif, self.folder, self.host = vif, folder, None
        self.ns = "tg" + vif.id[:8]
        sh("ip", "netns", "add", self.ns)
        sh("ip", "link", "add", vif.devname, "type", "veth", "peer", "name", "eth0", "netns", self.ns)
        sh("ip", "-n", self.ns, "link", "set", "eth0", "address", vif.mac, "mtu", str(vif.mtu))
        sh("ip", "-n", self.ns, "link", "set", "lo", "up")
        self.plug_into(host)
        sh("ip", "-n", self.ns, "link", "set", "eth0", "up")

    def plug_into(self, host):
        """Move the cable to a host on which the network is already set up."""
        move = ("ip", "link", "set", self.vif.devname, "netns", str(host.host.pid))
        if self.host is None:
            sh(*move)
        else:
            sh("nsenter", f"--net=/proc/{self.host.host.pid}/ns/net", *move)
        sh("nsenter", f"--net=/proc/{host.host.pid}/ns/net", "ip", "link", "set", self.vif.devname, "master",
           self.vif.bridge, "mtu", str(self.vif.mtu), "up")
        self.host = host

    def remove(self):
        sh("ip", "netns", "del", self.ns, check=False)


class Hosts:
    """``count`` hosts on one switch."""

    def __init__(self, count, folder):
        nova.conf.register()
        sweep()
        self.folder = folder
        self.site = Site.temporary()
        self.core = None
        self._powers = []
        self.guests = []
        self.hosts = []
        try:
            self._switch_on(count)
        except BaseException:
            self.close()
            raise

    def _switch_on(self, count):
        url = f"sqlite:///{self.folder}/nova.sqlite"
        migrate.sync(url)
        self.core = Conductor(url)
        self.core.desk = NetworkHosts(self.core)
        self.core.peers.start()
        switch = Process("switch", self.site.switch.power_command(), self.site.directory / "switch.log")
        self._powers.append(switch)
        switch.start()
        eventually(self.site.switch.usable, 30, "the switch has started")
        for number in range(1, count + 1):
            host = self.site.add(number, f"h{number}")
            power = Process(f"power{number}", host.power_command(), host.directory / "power.log")
            self._powers.append(power)
            power.start()
            eventually(lambda host=host: host.pid is not None, 30, "the host has booted")
            made = Host(self.core, host, power, self.site.state)
            self.hosts.append(made)
            self.core.hosts[made.name] = made
            made.do("start", instances=[])

    def network(self, vni=5, **more):
        """Create a VXLAN network in the database, and return it for guests."""
        net = linuxnet_lab.Net(vni=vni, **more)
        Networks(self.core).create(ctx(), Network(
            uuid=net.id, label=net.id, cidr=f"{net.prefix}.0/24", gateway="", bridge="", vni=vni))
        return net

    def boot(self, host, instance, *rules):
        """Start a guest on this host with its addresses configured."""
        host.do("plug", instance=instance, rules=RuleSet(rules=list(rules)))
        guest = Guest(instance.network_info[0], self.folder, host)
        self.guests.append(guest)
        guest.static()
        return guest

    def close(self):
        for guest in self.guests:
            guest.remove()
        for host in self.hosts:
            host.close()
        if self.core is not None:
            self.core.peers.stop()
            self.core.db.close()
        self.site.remove()
        for power in self._powers:
            power.kill()
