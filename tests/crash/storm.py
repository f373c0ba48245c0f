"""A seeded storm: what is asked for, what breaks meanwhile, and the clients that ask.

The same seed makes the same plan. How its parts interleave differs from run to run.
"""

from __future__ import annotations

import collections
import concurrent.futures
import dataclasses
import random
import threading
import time
import uuid as uuidlib
from typing import Any

import requests

from tests.integration.cluster import Cluster

CLIENTS = 12
# Seconds from the first request to the last fault, of operations per client, and of servers that they share.
LENGTH = 32.0
# Servers that are accepted at least: a storm in which nobody was served would prove nothing.
ENOUGH = 20
_OPERATIONS = 36
_SLOTS = 30
# The longest that any request may take: a call that is lost on the bus, and what it waited for before.
_PATIENCE = 40.0

DATABASES = ("sqlite", "postgresql", "mariadb")
COMPUTES = ("compute-1", "compute-2", "compute-3")
CONDUCTORS = ("conductor-1", "conductor-2")
SCHEDULERS = ("scheduler-1", "scheduler-2")

# What clients do, and how often.
_VERBS = {
    "create": 26, "create-many": 4, "delete": 12, "stop": 8, "start": 8, "reboot-soft": 5, "reboot-hard": 5,
    "pause": 4, "unpause": 4, "suspend": 4, "resume": 4, "metadata": 5, "show": 4, "list": 2,
    "resize": 6, "migrate": 5, "confirm": 5, "revert": 4, "live-migrate": 7, "attach": 8, "detach": 5,
    "image": 3, "backup": 2, "shelve": 5, "unshelve": 6,
    # Requests that have to be refused, and one that is accepted and cannot be fulfilled.
    "no-flavor": 2, "no-name": 1, "no-action": 1, "no-server": 2, "no-room": 1,
}
_ACTIONS: dict[str, dict[str, Any]] = {
    "stop": {"os-stop": None}, "start": {"os-start": None}, "pause": {"pause": None}, "unpause": {"unpause": None},
    "suspend": {"suspend": None}, "resume": {"resume": None}, "no-action": {"explode": None},
    "reboot-soft": {"reboot": {"type": "SOFT"}}, "reboot-hard": {"reboot": {"type": "HARD"}},
    "resize": {"resize": {"flavorRef": "larger"}}, "migrate": {"migrate": None}, "confirm": {"confirmResize": None},
    "revert": {"revertResize": None}, "live-migrate": {"os-migrateLive": {"host": None, "block_migration": "auto"}},
    "image": {"createImage": {"name": "image"}}, "shelve": {"shelve": None}, "unshelve": {"unshelve": None},
    "backup": {"createBackup": {"name": "backup", "backup_type": "daily", "rotation": 2}}}
# Volumes that the servers of several slots have in turns.
_VOLUMES = 12
# The answers that are right, besides 503 ("try again": a part of Nova is away).
_RIGHT = {
    "create": {202}, "create-many": {202}, "no-room": {202}, "delete": {204, 404}, "metadata": {200, 404, 409},
    "show": {200, 404}, "list": {200}, "no-flavor": {400}, "no-name": {400}, "no-action": {400, 404},
    "no-server": {404}, **{verb: {202, 404, 409} for verb in _ACTIONS if verb != "no-action"},
    # 400: it has that flavor already; somebody else has the volume; it is being attached still.
    "resize": {202, 400, 404, 409}, "confirm": {204, 404, 409}, "attach": {202, 400, 404, 409},
    "detach": {202, 400, 404, 409}}


# --- the plan --------------------------------------------------------------------------------------------
@dataclasses.dataclass(frozen=True)
class Operation:
    """A request on whatever the client finds in a slot, ``pause`` seconds after the one before."""

    verb: str
    slot: int
    pause: float

    def __str__(self) -> str:
        return f"+{self.pause:.2f} {self.verb} {self.slot}"


@dataclasses.dataclass(frozen=True)
class Fault:
    """What is done to ``victim``, ``pause`` seconds after the fault before; it lasts ``seconds``."""

    kind: str
    victim: str
    pause: float
    seconds: float

    def __str__(self) -> str:
        return f"+{self.pause:.1f} {self.kind} {self.victim} for {self.seconds:.1f} s"


@dataclasses.dataclass(frozen=True)
class Plan:
    """``faults`` has two lanes, which break processes and what they stand on at the same time."""

    seed: int
    database: str
    operations: list[list[Operation]]
    faults: list[list[Fault]]

    def __str__(self) -> str:
        lines = [f"seed {self.seed} on {self.database}"]
        lines += [f"faults {number}: {'; '.join(map(str, lane))}" for number, lane in enumerate(self.faults)]
        lines += [f"client {number}: {'; '.join(map(str, own))}" for number, own in enumerate(self.operations)]
        return "\n".join(lines)


def make_plan(seed: int, database: str | None = None) -> Plan:
    """The plan of a seed; the seeds take turns with the databases unless one is named."""
    chance = random.Random(seed)
    chosen = database or DATABASES[seed % len(DATABASES)]
    verbs, weights = list(_VERBS), list(_VERBS.values())
    operations = [[Operation(chance.choices(verbs, weights)[0], chance.randrange(_SLOTS),
                             round(chance.uniform(0.2, 2 * LENGTH / _OPERATIONS - 0.2), 2))
                   for _ in range(_OPERATIONS)] for _ in range(CLIENTS)]
    return Plan(seed, chosen, operations, [_lane(chance, _process_fault), _lane(chance, _ground_fault, chosen)])


def _lane(chance: random.Random, make: Any, *arguments: Any) -> list[Fault]:
    faults: list[Fault] = []
    while sum(fault.pause + fault.seconds for fault in faults) < LENGTH - 6:
        faults.append(make(chance, *arguments))
    return faults


def _process_fault(chance: random.Random) -> Fault:
    kind = chance.choices(["kill", "freeze", "term", "clock"], [6, 3, 2, 2])[0]
    among = [*COMPUTES, *CONDUCTORS * 2, *SCHEDULERS]
    if kind in ("kill", "term"):
        among += ["api", "+".join(CONDUCTORS), "+".join(COMPUTES), "+".join(SCHEDULERS)]
    # A frozen one sleeps through its leases; a heartbeat is missed by one that is killed.
    seconds = {"kill": chance.uniform(0.2, 3), "freeze": chance.uniform(5, 7), "term": 0.0, "clock": 0.0}[kind]
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
    """The clients of one run, and what they saw."""

    def __init__(self, nova: Cluster, plan: Plan) -> None:
        self.nova = nova
        self.plan = plan
        self.accepted: set[str] = set()
        self.violations: list[str] = []
        self.answers: collections.Counter[str] = collections.Counter()
        # What the clients wait for, by client.
        self.under_way: dict[int, str] = {}
        self._deleted: set[str] = set()
        # Deletes of which nobody knows whether they were accepted.
        self._doubtful: set[str] = set()
        # Names of servers whose create was refused: the API takes back what was made all the same, unless it dies.
        self._refused: set[str] = set()
        self._slots: dict[int, str] = {}
        self._volumes = [nova.api.post("/os-volumes", {"volume": {"size": 1}}, "2.35")["volume"]["id"]
                         for _ in range(_VOLUMES)]
        self._lock = threading.Lock()
        self._begin = time.monotonic()
        self._log: list[str] = []

    def run(self) -> None:
        """Returns when every client has done its part."""
        with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
            for future in [pool.submit(self._client, number) for number in range(CLIENTS)]:
                future.result()

    def note(self, text: str) -> None:
        """A line in the log of the run."""
        with self._lock:
            self._log.append(f"{time.monotonic() - self._begin:6.2f} {text}")

    def story(self) -> str:
        """The plan, what happened when, and what is under way."""
        with self._lock:
            waiting = [f"under way: client {number}: {what}" for number, what in self.under_way.items()]
            return "\n".join([str(self.plan), *self._log, *waiting, f"answers: {dict(self.answers)}"])

    def settle(self) -> tuple[set[str], set[str]]:
        """(accepted, deleted) for the invariants: what lost answers left open is looked up."""
        servers = self.nova.api.servers()
        refused = {uuid for uuid, server in servers.items() if _request_of(server["name"]) in self._refused}
        # Everything else was asked for by somebody: a request without an answer may have made it.
        accepted = self.accepted | servers.keys() - refused
        deleted = set(self._deleted)
        if not any(fault.victim == "api" for lane in self.plan.faults for fault in lane):
            deleted |= refused
        for uuid in self._doubtful:
            path = f"/servers/{uuid}"
            action = None if uuid not in servers else self.nova.api.get(
                f"{path}/os-instance-actions")["instanceActions"][0]["action"]
            if action in (None, "delete"):
                deleted.add(uuid)
        return accepted, deleted

    # --- one client --------------------------------------------------------------------------------
    def _client(self, number: int) -> None:
        session = requests.Session()
        for index, operation in enumerate(self.plan.operations[number]):
            if time.monotonic() - self._begin > LENGTH * (1 if len(self.accepted) >= ENOUGH else 2):
                self.note(f"client {number} ends {len(self.plan.operations[number]) - index} requests early")
                return
            time.sleep(operation.pause)
            target = self._slots.get(operation.slot) or str(uuidlib.UUID(int=number * 1000 + index))
            what = f"{operation.verb} {target if 'create' not in operation.verb else operation.slot}"
            self.under_way[number] = f"{what} since {time.monotonic() - self._begin:.2f}"
            try:
                self._ask(session, operation, target, f"s{number}-{index}", what)
            finally:
                del self.under_way[number]

    def _ask(self, session: requests.Session, operation: Operation, target: str, name: str, what: str) -> None:
        verb = operation.verb
        method, path, body = _request(verb, target, name, self.nova.api.image_id,
                                      self._volumes[operation.slot % _VOLUMES])
        # Noted before: an answer that gets lost may have been yes.
        if verb == "delete" and target in self.accepted:
            self._doubtful.add(target)
        begin = time.monotonic()
        try:
            response = session.request(method, self.nova.api.url + path, json=body, timeout=_PATIENCE, headers={
                "X-Auth-Token": "tester:" + "p" * 32, "X-Roles": "admin", "OpenStack-API-Version": "compute 2.104"})
        except requests.Timeout:
            self._violated(f"{what}: no answer in {_PATIENCE:g} s")
            return
        except requests.RequestException as error:
            self.answers["none"] += 1
            self.note(f"{what}: {type(error).__name__}")
            return
        status = response.status_code
        self.answers[str(status)] += 1
        self.note(f"{what}: {status} after {time.monotonic() - begin:.2f} s"
                  + ("" if status < 300 else f" {response.text[:120]}"))
        if status not in _RIGHT[verb] | {503}:
            self._violated(f"{what}: {status} {response.text[:500]}")
        if status < 300:
            self._noted(verb, operation.slot, target, response)
        elif verb in ("create", "create-many", "no-room"):
            self._refused.add(name)

    def _noted(self, verb: str, slot: int, target: str, response: requests.Response) -> None:
        if verb in ("create", "no-room"):
            uuid = response.json()["server"]["id"]
            self.accepted.add(uuid)
            self._slots[slot] = uuid
        elif verb == "delete":
            self._deleted.add(target)

    def _violated(self, text: str) -> None:
        self.note(f"VIOLATION {text}")
        self.violations.append(text)


def _request_of(server: str) -> str:
    """The name in the request that asked for the server of this name: one of several has a number at its end."""
    return "-".join(server.split("-")[:2])


def _request(verb: str, target: str, name: str, image: str, volume: str) -> tuple[str, str, Any]:
    """(method, path, body)"""
    server: dict[str, Any] = {"name": name, "flavorRef": "tiny", "imageRef": image, "networks": "auto"}
    path = f"/servers/{target}"
    match verb:
        case "create":
            return "POST", "/servers", {"server": server}
        case "create-many":
            return "POST", "/servers", {"server": {**server, "min_count": 1, "max_count": 3}}
        case "no-room":
            return "POST", "/servers", {"server": {**server, "flavorRef": "huge"}}
        case "no-flavor":
            return "POST", "/servers", {"server": {**server, "flavorRef": "unknown"}}
        case "no-name":
            return "POST", "/servers", {"server": {**server, "name": ""}}
        case "no-server":
            return "POST", f"/servers/{uuidlib.uuid4()}/action", _ACTIONS["stop"]
        case "delete":
            return "DELETE", path, None
        case "attach":
            return "POST", f"{path}/os-volume_attachments", {"volumeAttachment": {"volumeId": volume}}
        case "detach":
            return "DELETE", f"{path}/os-volume_attachments/{volume}", None
        case "metadata":
            return "POST", f"{path}/metadata", {"metadata": {"said": name}}
        case "show":
            return "GET", path, None
        case "list":
            return "GET", "/servers/detail", None
    return "POST", f"{path}/action", _ACTIONS[verb]
