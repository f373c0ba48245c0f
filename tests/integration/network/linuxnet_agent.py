"""The network back end of one host in a process on that host, controlled by JSON lines.

Requests of the test, and requests of the agent to the conductor in the test::

    {"id": 1, "do": "plug", "args": {...}}   →   {"done": 1, "answer": ..., "error": null}
    {"ask": 7, "what": "rules", "args": {...}}                ←   {"answered": 7, "answer": [...]}
"""

from __future__ import annotations

import json
import sys
import threading

import msgspec

import nova.conf
from nova import exception
from nova.conf import CONF
from nova.network.linux.driver import LinuxNetwork
from nova.objects.networks.network import VIF, Peers, RuleSet
from nova.objects.servers.instance import Instance


class Desk:
    """A proxy for the conductor, which runs in the test process."""

    def __init__(self, say):
        self._say = say
        self._lock = threading.Lock()
        self._waiting = {}

    def present(self, _ctx, host, address, networks, complete=False):
        return self._ask(list[Peers], "present", host=host, address=address, networks=networks, complete=complete)

    def rules(self, _ctx, known, grouped=False):
        return self._ask(dict[str, RuleSet], "rules", known=known, grouped=grouped)

    def names(self, _ctx, host, known):
        return []

    def _ask(self, kind, what, **args):
        with self._lock:
            number = len(self._waiting)
            self._waiting[number] = [threading.Event(), None]
        self._say({"ask": number, "what": what, "args": args})
        event, _none = self._waiting[number]
        if not event.wait(10):
            raise exception.ServiceUnavailable("the conductor does not answer")
        return msgspec.convert(self._waiting[number][1], kind)

    def answered(self, number, answer):
        self._waiting[number][1] = answer
        self._waiting[number][0].set()


class Agent:
    def __init__(self, host):
        self._mutex = threading.Lock()
        self.desk = Desk(self._say)
        self.driver = LinuxNetwork()
        self.driver.connect(host, self.desk)

    def _say(self, message):
        with self._mutex:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()

    def serve(self):
        for line in sys.stdin:
            message = json.loads(line)
            if "answered" in message:
                self.desk.answered(message["answered"], message["answer"])
            else:
                threading.Thread(target=self._run, args=(message,), daemon=True).start()

    def _run(self, message):
        answer = error = None
        try:
            answer = getattr(self, message["do"])(**message["args"])
        except Exception as caught:
            error = f"{type(caught).__name__}: {caught}"
        self._say({"done": message["id"], "answer": answer, "error": error})

    def start(self, instances):
        self.driver.start(msgspec.convert(instances, list[Instance]))

    def plug(self, instance, rules):
        self.driver.plug(msgspec.convert(instance, Instance), msgspec.convert(rules, RuleSet))

    def plug_vif(self, instance, vif, rules):
        self.driver.plug_vif(msgspec.convert(instance, Instance), msgspec.convert(vif, VIF),
                             msgspec.convert(rules, RuleSet))

    def unplug(self, instance):
        self.driver.unplug(msgspec.convert(instance, Instance))

    def unplug_guest(self, uuid):
        self.driver.unplug_guest(uuid)

    def refresh_peers(self, peers):
        self.driver.refresh_peers(msgspec.convert(peers, Peers))

    def guests(self):
        return sorted(self.driver.guests())


def main():
    host, state_path, address = sys.argv[1:]
    nova.conf.register()
    CONF.set_override("state_path", state_path)
    CONF.set_override("my_ip", address)
    CONF.set_override("nat", False, group="network")
    Agent(host).serve()


if __name__ == "__main__":
    main()
