"""A seeded storm: the plan of requests and faults, and the clients that send the requests.

The same seed makes the same plan; the interleaving differs between runs.
"""

from __future__ import annotations

import collections
import concurrent.futures
import contextlib
import dataclasses
import random
import threading
import time
import uuid as uuidlib
from typing import Any

import requests

from tests.crash import verbs
from tests.http_session import Session
from tests.integration.cluster import Cluster
from tests.integration.volumes.embedded_shares import new_share

CLIENTS = 12
# Seconds from the first request to the last fault.
LENGTH = 32.0
# Minimum of accepted servers: a storm that serves no client proves nothing.
ENOUGH = 20
# Operations per client, and slots of servers that the clients share.
_OPERATIONS = 36
_SLOTS = 30
# Maximum seconds of a request, including a lost call on the bus.
_TIMEOUT = 40.0

DATABASES = ("sqlite", "postgresql", "mariadb")
COMPUTES = ("compute-1", "compute-2", "compute-3")
CONDUCTORS = ("conductor-1", "conductor-2")
SCHEDULERS = ("scheduler-1", "scheduler-2")

_HEADERS = {"X-Auth-Token": "tester:" + "p" * 32, "X-Roles": "admin,service", "OpenStack-API-Version": "compute 2.104"}
# Volumes shared by the servers of several slots, attached to one server at a time.
_VOLUMES = 12
# Shares that several servers may attach at once.
_SHARES = 3
_GROUP = "web"
# The last microversion with volumes and security groups.
_OLD = "2.35"
# Maximum duration in multiples of LENGTH while fewer than ENOUGH servers are accepted, and the seconds before a client
# repeats a create request that was refused with 503.
_PROLONGED, _AGAIN = 4, 1.0
# Number of polls for a requested migration, and the seconds between them.
_LOOKS, _PAUSE = 6, 0.15


# --- the plan --------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Operation:
    """A request for the server in a slot, ``pause`` seconds after the previous request."""

    verb: str
    slot: int
    pause: float

    def __str__(self) -> str:
        return f"+{self.pause:.2f} {self.verb} {self.slot}"


@dataclasses.dataclass(frozen=True)
class Fault:
    """A fault for ``victim``, ``pause`` seconds after the previous fault, lasting ``seconds``."""

    kind: str
    victim: str
    pause: float
    seconds: float

    def __str__(self) -> str:
        return f"+{self.pause:.1f} {self.kind} {self.victim} for {self.seconds:.1f} s"


@dataclasses.dataclass(frozen=True)
class Plan:
    """A plan; ``faults`` has two concurrent sequences: of processes, and of the broker and the database."""

    seed: int
    database: str
    operations: list[list[Operation]]
    faults: list[list[Fault]]

    def __str__(self) -> str:
        lines = [f"seed {self.seed} on {self.database}"]
        lines += [f"faults {number}: {'; '.join(map(str, faults))}" for number, faults in enumerate(self.faults)]
        lines += [f"client {number}: {'; '.join(map(str, own))}" for number, own in enumerate(self.operations)]
        return "\n".join(lines)


def make_plan(seed: int, database: str | None = None) -> Plan:
    """Return the plan of a seed; seeds use the databases in turn unless ``database`` is given."""
    chance = random.Random(seed)
    chosen = database or DATABASES[seed % len(DATABASES)]
    names, weights = list(verbs.WEIGHTS), list(verbs.WEIGHTS.values())
    operations = [[Operation(chance.choices(names, weights)[0], chance.randrange(_SLOTS),
                             round(chance.uniform(0.2, 2 * LENGTH / _OPERATIONS - 0.2), 2))
                   for _ in range(_OPERATIONS)] for _ in range(CLIENTS)]
    return Plan(seed, chosen, operations, [_lane(chance, _process_fault), _lane(chance, _ground_fault, chosen)])


def _lane(chance: random.Random, make: Any, *arguments: Any) -> list[Fault]:
    faults: list[Fault] = []
    while sum(fault.pause + fault.seconds for fault in faults) < LENGTH - 6:
        faults.append(make(chance, *arguments))
    return faults


def _process_fault(chance: random.Random) -> Fault:
    kind = chance.choices(["kill", "freeze", "term", "clock", "down"], [6, 3, 2, 2, 2])[0]
    among = [*COMPUTES, *CONDUCTORS * 2, *SCHEDULERS]
    if kind in ("kill", "term"):
        among += ["api", "+".join(CONDUCTORS), "+".join(COMPUTES), "+".join(SCHEDULERS)]
    # A freeze is longer than a lease; a kill is longer than a heartbeat interval.
    seconds = {"kill": chance.uniform(0.2, 3), "freeze": chance.uniform(5, 7), "term": 0.0, "clock": 0.0,
               "down": chance.uniform(2, 5)}[kind]
    if kind == "down":  # an operator forces the host down and evacuates its servers
        among = [*COMPUTES]
    if kind == "clock":
        kind = chance.choice(["clock+300", "clock-300", "clock+20", "clock-20"])
    return Fault(kind, chance.choice(among), round(chance.uniform(0.5, 2), 1), round(seconds, 1))


def _ground_fault(chance: random.Random, database: str) -> Fault:
    kinds = {"broker": 2, "purge": 4, "double": 4, "shuffle": 4}
    kinds.update({"locks": 3} if database == "sqlite" else
                 {"database": 2, "cut-connections": 3, "deadlocks": 3})
    kind = chance.choices(list(kinds), list(kinds.values()))[0]
    victim, seconds = "", chance.uniform(1, 3)
    if kind in ("purge", "double", "shuffle"):
        hosts = (f"compute.{name}" for name in COMPUTES)
        victim = chance.choice(["conductor", "conductor-reports", "scheduler", *hosts])
    elif kind == "broker":
        seconds = chance.uniform(0, 2)
    return Fault(kind, victim, round(chance.uniform(0.5, 3), 1), round(seconds, 1))


# --- the clients -------------------------------------------------------------------------------------------
class Storm:
    """The clients of a run and their observations. ``image``: an image that differs from that of the servers."""

    def __init__(self, nova: Cluster, plan: Plan, image: str) -> None:
        self.nova = nova
        self._images = (nova.api.image_id, image)
        self.plan = plan
        self.accepted: set[str] = set()
        self.violations: list[str] = []
        self.answers: collections.Counter[str] = collections.Counter()
        # The current request, by client.
        self.under_way: dict[int, str] = {}
        self._deleted: set[str] = set()
        # Servers whose delete request had no response.
        self._doubtful: set[str] = set()
        # Servers that may be soft-deleted, and then restored or reclaimed.
        self._doomed: set[str] = set()
        # Names of servers whose create request was refused: the API deletes such servers unless it dies.
        self._refused: set[str] = set()
        self._slots: dict[int, str] = {}
        self._on_volume: set[str] = set()
        # Servers by verb, for requests that only make sense afterwards.
        self._done_to: dict[str, list[str]] = collections.defaultdict(list)
        self.volumes = [nova.api.post("/os-volumes", {"volume": {"size": 1}}, _OLD)["volume"]["id"]
                        for _ in range(_VOLUMES)]
        self.shares = [new_share(nova) for _ in range(_SHARES)]
        nova.api.post("/os-security-groups", {"security_group": {"name": _GROUP, "description": ""}}, _OLD)
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._log: list[str] = []

    def run(self) -> None:
        """Run all clients to their ends."""
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for future in [pool.submit(self._client, number) for number in range(CLIENTS)]:
                future.result()

    def note(self, text: str) -> None:
        """Add a line to the log of the run."""
        with self._lock:
            self._log.append(f"{time.monotonic() - self._begin:6.2f} {text}")

    def story(self) -> str:
        """Return the plan, the log, and the current requests."""
        with self._lock:
            waiting = [f"under way: client {number}: {what}" for number, what in self.under_way.items()]
            return "\n".join([str(self.plan), *self._log, *waiting, f"answers: {dict(self.answers)}"])

    def settle(self) -> tuple[set[str], set[str]]:
        """Return (accepted, deleted) for the invariants. Query the servers of requests without a response.

        A soft-deleted server may be in neither set: it may exist or not.
        """
        servers = self.nova.api.servers()
        refused = {uuid for uuid, server in servers.items() if _request_of(server["name"]) in self._refused}
        # All other servers were requested: a request without a response may have created them.
        accepted = self.accepted | servers.keys() - refused
        deleted = set(self._deleted)
        if not any(fault.victim == "api" for faults in self.plan.faults for fault in faults):
            deleted |= refused
        for uuid in self._doubtful - self._doomed:
            path = f"/servers/{uuid}"
            action = None if uuid not in servers else self.nova.api.get(
                f"{path}/os-instance-actions")["instanceActions"][0]["action"]
            if action in (None, "delete"):
                deleted.add(uuid)
        return accepted - (self._doomed - deleted), deleted

    def evacuate(self, host: str) -> None:
        """Evacuate every server of a failed host, as an operator does."""
        with contextlib.suppress(requests.RequestException, AssertionError):
            for uuid, server in self.nova.api.servers().items():
                if server["OS-EXT-SRV-ATTR:host"] == host:
                    self._ask(requests, Operation("evacuate", 0, 0.0), uuid, "", f"evacuate {uuid} from {host}")

    # --- a client ----------------------------------------------------------------------------------
    def _client(self, number: int) -> None:
        session = Session()
        for index, operation in enumerate(self.plan.operations[number]):
            if self._is_over():
                self.note(f"client {number} ends {len(self.plan.operations[number]) - index} requests early")
                return
            time.sleep(operation.pause)
            target = self._target(operation) or str(uuidlib.UUID(int=number * 1000 + index))
            what = f"{operation.verb} {target if operation.verb not in verbs.CREATES else operation.slot}"
            self.under_way[number] = f"{what} since {time.monotonic() - self._begin:.2f}"
            try:
                if operation.verb in verbs.STEERS:
                    before = dataclasses.replace(operation, verb="live-migrate")
                    self._ask(session, before, target, "", f"{what}, before that live-migrate")
                again = 0
                while (self._ask(session, operation, target, f"s{number}-{index}.{again}", what) == 503
                       and operation.verb in verbs.CREATES and not self._is_over()):
                    time.sleep(_AGAIN)
                    again += 1
            finally:
                del self.under_way[number]

    def _is_over(self) -> bool:
        """Return True if the storm is over: a client then skips its remaining requests."""
        return time.monotonic() - self._begin > LENGTH * (1 if len(self.accepted) >= ENOUGH else _PROLONGED)

    def _target(self, operation: Operation) -> str | None:
        with self._lock:
            before = self._done_to[verbs.FOLLOWS.get(operation.verb, "")]
            if before:
                return before.pop(0)
            # An empty slot stands for the newest server.
            return self._slots.get(operation.slot) or next(reversed(self._slots.values()), None)

    def _ask(self, session: Any, operation: Operation, target: str, name: str, what: str) -> int | None:
        """Send a request; return the status, or None without a response."""
        verb = operation.verb
        world = verbs.World(self._images, self.volumes[operation.slot % _VOLUMES],
                            self.shares[operation.slot % _SHARES], _GROUP)
        method, path, body = verbs.request(verb, target, name, world)
        if verb in verbs.STEERS:
            path += f"/{self._migration(session, path)}" + ("/action" if verb == "force" else "")
        elif verb == "detach-interface":
            path += f"/{self._interface(session, path, operation.slot)}"
        elif verb == "swap":
            path += f"/{self._volume(session, path)}"
        # Recorded before the request: it may be accepted although its response is lost.
        if verb == "delete" and target in self.accepted:
            self._doubtful.add(target)
        elif verb == "soft-delete":
            self._doomed.add(target)
        begin = time.monotonic()
        try:
            response = session.request(method, self.nova.api.url + path, json=body, timeout=_TIMEOUT, headers=_HEADERS)
        except requests.Timeout:
            self._violated(f"{what}: no answer in {_TIMEOUT:g} s")
            return None
        except requests.RequestException as error:
            self.answers["none"] += 1
            self.note(f"{what}: {type(error).__name__}")
            return None
        status = response.status_code
        self.answers[str(status)] += 1
        self.note(f"{what}: {status} after {time.monotonic() - begin:.2f} s"
                  + ("" if status < 300 else f" {response.text[:120]}"))
        right = verbs.RIGHT[verb] | (verbs.RIGHT_ON_VOLUME.get(verb, set()) if target in self._on_volume else set())
        if status not in right | {503}:
            self._violated(f"{what}: {status} {response.text[:500]}")
        if status < 300:
            self._noted(verb, operation.slot, target, response)
        elif verb in verbs.CREATES:
            self._refused.add(name)
        return int(status)

    def _migration(self, session: Any, path: str) -> int:
        """Return the id of the server's running live migration, or 0 if there is none or the API is unavailable."""
        for _ in range(_LOOKS):
            if found := self._list(session, path, "migrations"):
                return int(found[0]["id"])
            time.sleep(_PAUSE)
        return 0

    def _interface(self, session: Any, path: str, number: int) -> str:
        """Return the port id of an interface of the server, or a random id if its interfaces are unavailable."""
        found = self._list(session, path, "interfaceAttachments")
        return str(found[number % len(found)]["port_id"] if found else uuidlib.uuid4())

    def _volume(self, session: Any, path: str) -> str:
        """Return a shared volume of the server, or the id of no volume if it has none."""
        found = [item["volumeId"] for item in self._list(session, path, "volumeAttachments")]
        return next((volume for volume in found if volume in self.volumes), str(uuidlib.uuid4()))

    def _list(self, session: Any, path: str, key: str) -> list[dict[str, Any]]:
        with contextlib.suppress(requests.RequestException, KeyError):
            found: list[dict[str, Any]] = session.get(
                self.nova.api.url + path, timeout=_TIMEOUT, headers=_HEADERS).json()[key]
            return found
        return []

    def _noted(self, verb: str, slot: int, target: str, response: requests.Response) -> None:
        if verb in verbs.CREATES and verb != "create-many":
            uuid = response.json()["server"]["id"]
            self.accepted.add(uuid)
            if verb == "create-on-volume":
                self._on_volume.add(uuid)
            with self._lock:
                self._slots[slot] = uuid
        elif verb == "delete":
            self._deleted.add(target)
        with self._lock:
            self._done_to[verb].append(target)

    def _violated(self, text: str) -> None:
        self.note(f"VIOLATION {text}")
        self.violations.append(text)


def _request_of(server: str) -> str:
    """Return the name in the create request of the server; servers of a multi-create have a number appended."""
    return "-".join(server.split("-")[:2])
