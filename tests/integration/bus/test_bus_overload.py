"""Frozen, dead and overloaded servers behind a real RabbitMQ."""

from __future__ import annotations

import collections
import concurrent.futures
import pathlib
import time
from collections.abc import Callable, Iterator
from typing import Any

import amqp
import pytest

from nova import bus, context, exception
from nova.bus import deadlines
from nova.bus.broker import listeners
from nova.conductor.endpoints.hosts import Services
from nova.db.hosts import services
from nova.db.maintenance import migrate
from tests.integration.bus import bus_desk
from tests.integration.bus.bus_desk import Desk
from tests.integration.processes import Process, eventually
from tests.integration.rabbit import Rabbit
from tests.unit.conductor.books import Books

CTX = context.RequestContext(user_id="u", project_id="p", roles=["member"], overwrite=False)
# Number of unacknowledged messages sent to a frozen server: [oslo_messaging_rabbit]rabbit_qos_prefetch_count.
PREFETCH = 4


class World:
    """Servers on one vhost, and their client, which connects to the broker through ``port``."""

    def __init__(self, rabbit: Rabbit, directory: pathlib.Path, port: int | None = None, **options: Any) -> None:
        self._rabbit = rabbit
        self._url = rabbit.new_vhost()
        self._config = bus_desk.configure(directory, self._url, **options)
        (directory / "client").mkdir()
        through = self._url.replace(f":{rabbit.port}/", f":{port or rabbit.port}/")
        self.transport = bus_desk.transport(bus_desk.configure(directory / "client", through, **options))
        self.desk = bus.client(self.transport, Desk)
        self.processes: dict[str, Process] = {}

    def start(self, *hosts: str) -> None:
        for host in hosts:
            self.processes[host] = bus_desk.start(self._config, host)

    def begun(self, host: str) -> list[str]:
        return [line.removeprefix("begins ").rstrip(".") for line in self.processes[host].log.read_text().split("\n")
                if line.startswith("begins ")]

    def has_consumers(self, name: str) -> bool:
        with self._connect() as connection:
            return bool(connection.channel().queue_declare(name, passive=True).consumer_count)

    def queues(self, *names: str) -> dict[str, int]:
        """Return the number of ready messages of those of these queues that exist."""
        found = {}
        with self._connect() as connection:
            for name in names:
                try:
                    found[name] = connection.channel().queue_declare(name, passive=True).message_count
                except amqp.NotFound:
                    continue
        return found

    def exists(self, exchange: str) -> bool:
        with self._connect() as connection:
            try:
                connection.channel().exchange_declare(exchange, "fanout", passive=True)
            except amqp.NotFound:
                return False
        return True

    def delete(self, queue: str) -> None:
        with self._connect() as connection:
            connection.channel().queue_delete(queue)

    def _connect(self) -> amqp.Connection:
        return amqp.Connection(f"127.0.0.1:{self._rabbit.port}", userid="nova", password="nova",
                               virtual_host=self._url.rpartition("/")[2])

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
        self.transport.cleanup()


@pytest.fixture
def new_world(rabbitmq: Rabbit, tmp_path: pathlib.Path) -> Iterator[Callable[..., World]]:
    made: list[World] = []

    def make(*hosts: str, **options: Any) -> World:
        made.append(World(rabbitmq, tmp_path, **options))
        made[-1].start(*hosts)
        return made[-1]

    yield make
    for world in made:
        world.end()


def answers(world: World, count: int, seconds: float = 0.0, callers: int = 16) -> collections.Counter[str]:
    """Return the number of replies of each server, and of calls without a reply under ""."""
    def ask(number: int) -> str:
        try:
            return world.desk.ask(CTX, f"call {number}", seconds)
        except exception.ServiceUnavailable:
            return ""

    with concurrent.futures.ThreadPoolExecutor(callers) as pool:
        return collections.Counter(pool.map(ask, range(count)))


def test_frozen_server_fails_at_most_prefetch_count_calls(new_world: Callable[..., World]) -> None:
    world = new_world("one", "two", seconds=15)  # long enough for a server on a busy machine
    assert set(answers(world, 200)) == {"one", "two"}
    world.processes["one"].freeze()
    found = answers(world, 400)
    assert set(found) <= {"two", ""}
    assert found[""] <= PREFETCH, found


def test_thawed_server_skips_expired_calls(new_world: Callable[..., World]) -> None:
    world = new_world("one")
    assert world.desk.ask(CTX, "before") == "one"
    world.processes["one"].freeze()
    for number in range(3):
        with pytest.raises(exception.ServiceUnavailable):
            bus.within(world.desk, 1).ask(CTX, f"refused {number}")
    time.sleep(1)
    world.processes["one"].thaw()

    def answered() -> bool:
        try:
            return world.desk.ask(CTX, "after") == "one"
        except exception.ServiceUnavailable:
            return False

    eventually(answered, 20, "the server answers again")
    assert [name for name in world.begun("one") if name.startswith("refused")] == []


@pytest.mark.parametrize("clock", ["shared", "of another machine"])
def test_no_call_starts_after_its_deadline_on_an_overloaded_server(new_world: Callable[..., World],
                                                                   monkeypatch: pytest.MonkeyPatch, clock: str) -> None:
    """Send four threads ten times the calls that they can serve in time, and freeze the process in between."""
    if clock != "shared":
        monkeypatch.setattr(deadlines, "_own_clock", lambda: clock)
    world = new_world("one", seconds=2)
    assert world.desk.ask(CTX, "before") == "one"

    def ask(number: int) -> bool:
        try:
            world.desk.ask(CTX, f"call {number} until {time.monotonic() + 2}", 0.2)
        except exception.ServiceUnavailable:
            return False
        return True

    with concurrent.futures.ThreadPoolExecutor(84) as pool:
        calls = [pool.submit(ask, number) for number in range(252)]
        time.sleep(1.5)
        world.processes["one"].freeze()
        time.sleep(2)
        world.processes["one"].thaw()
        answered = sum(call.result() for call in calls)
    begun = world.begun("one")
    late = [name for name in begun if name.startswith("late ")]
    print(f"{answered} of 252 calls were answered, {len(begun) - len(late)} were begun, {len(late)} of these too late")
    assert 0 < answered < 252
    assert late == []


def test_broker_expires_a_call_at_its_deadline(new_world: Callable[..., World]) -> None:
    world = new_world("one", seconds=10)
    assert world.desk.ask(CTX, "before") == "one"
    world.processes["one"].freeze()
    with concurrent.futures.ThreadPoolExecutor(2 * PREFETCH) as pool:
        for _ in range(2 * PREFETCH):
            pool.submit(bus.within(world.desk, 10).ask, CTX, "kept").add_done_callback(lambda call: call.exception())
        eventually(lambda: world.queues("desk")["desk"] > 0, 20, "a call waits in the queue")
        with world._connect() as connection:
            message = connection.channel().basic_get("desk")
        world.processes["one"].thaw()
    assert 0 < int(message.properties["expiration"]) <= 9000


def test_messages_go_to_another_server_when_one_is_full(new_world: Callable[..., World]) -> None:
    world = new_world("one", "two")
    with concurrent.futures.ThreadPoolExecutor() as pool:
        slow = [pool.submit(bus.within(bus.at(world.desk, "one"), 20).ask, CTX, f"slow {number}", 4)
                for number in range(bus_desk.THREADS)]
        eventually(lambda: len(world.begun("one")) == bus_desk.THREADS, 20,
                   "all threads of the first server are busy", interval=0.01)
        for number in range(100):
            world.desk.note(CTX, f"note {number}")
        eventually(lambda: len(world.begun("two")) >= 100 - PREFETCH, 20, "the other server receives the messages")
        assert {call.result(20) for call in slow} == {"one"}
    eventually(lambda: len(world.begun("one") + world.begun("two")) == 100 + len(slow), 20,
               "the remaining messages are processed")


def test_calls_fail_within_seconds_and_then_at_once_when_all_servers_are_killed(
        new_world: Callable[..., World]) -> None:
    world = new_world("one", "two")
    assert answers(world, 50)[""] == 0
    for process in world.processes.values():
        process.kill()
    time.sleep(1.2)  # no server has replied recently
    seconds = []
    for _number in range(3):
        started = time.monotonic()
        with pytest.raises(exception.ServiceUnavailable):
            bus.within(world.desk, 60).ask(CTX, "anybody?")
        seconds.append(time.monotonic() - started)
    assert seconds[0] < 10, seconds
    assert max(seconds[1:]) < 1, seconds
    world.start("three")
    eventually(lambda: answers(world, 1)["three"] == 1, 20, "the new server replies to calls")
    assert "anybody?" not in world.begun("three")


def test_calls_fail_at_once_when_all_servers_are_frozen_until_one_thaws(new_world: Callable[..., World]) -> None:
    world = new_world("one", "two")
    assert answers(world, 50)[""] == 0
    for process in world.processes.values():
        process.freeze()

    def at_once() -> bool:
        started = time.monotonic()
        with pytest.raises(exception.ServiceUnavailable):
            world.desk.ask(CTX, "anybody?")
        return time.monotonic() - started < 0.5

    eventually(at_once, 30, "calls are refused at once")
    assert all(at_once() for _number in range(20))
    world.processes["two"].thaw()
    eventually(lambda: answers(world, 1)["two"] == 1, 20, "the thawed server replies to calls")


def test_call_waits_for_the_restart_of_the_only_server(new_world: Callable[..., World]) -> None:
    world = new_world("one")
    assert world.desk.ask(CTX, "before") == "one"
    world.processes["one"].kill()
    time.sleep(1.2)
    with concurrent.futures.ThreadPoolExecutor() as pool:
        asked = pool.submit(bus.within(world.desk, 30).ask, CTX, "meanwhile")
        time.sleep(1)
        server = bus.serve(world.transport, Desk.topic, "two", [(Desk, bus_desk.Clerk("two"))])
        assert asked.result(30) == "two"
    bus.stop_taking(server)
    server.wait()


def test_call_to_a_killed_host_fails_at_once(new_world: Callable[..., World]) -> None:
    world = new_world("one", "two")
    assert bus.at(world.desk, "one").ask(CTX, "hello") == "one"
    world.processes["one"].kill()
    eventually(lambda: not world.has_consumers("desk.one"), 10, "the broker has closed the connection")
    started = time.monotonic()
    with pytest.raises(exception.ServiceUnavailable):
        bus.within(bus.at(world.desk, "one"), 30).ask(CTX, "hello")
    assert time.monotonic() - started < 5
    assert bus.at(world.desk, "two").ask(CTX, "hello") == "two"


def test_messages_to_a_dead_host_expire(new_world: Callable[..., World]) -> None:
    world = new_world("one")
    world.processes["one"].kill()
    brief = bus.within(bus.at(world.desk, "one"), 2)
    for number in range(500):
        brief.note(CTX, f"order {number}")
    assert world.queues("desk.one")["desk.one"] > 0
    eventually(lambda: world.queues("desk.one")["desk.one"] == 0, 10, "the broker has expired the orders")


def test_forgetting_a_dead_host_deletes_its_queue(new_world: Callable[..., World]) -> None:
    world = new_world("one", "two")
    world.processes["one"].kill()
    bus.at(world.desk, "one").note(CTX, "order")
    eventually(lambda: bus.forget(world.transport, Desk.topic, "one"), 10,
               "the broker has detected the closed connection")
    bus.forget(world.transport, Desk.topic, "two")  # has a consumer, so its queue stays
    assert world.queues("desk.one", "desk.two") == {"desk.two": 0}
    assert bus.at(world.desk, "two").ask(CTX, "hello") == "two"


def test_deleting_a_service_deletes_its_queue(new_world: Callable[..., World], tmp_path: pathlib.Path) -> None:
    world = new_world("one", "two")
    url = f"sqlite:///{tmp_path}/nova.sqlite"
    migrate.sync(url)
    core = Books(url)
    core.transport = world.transport
    made = {host: core.db.write(lambda connection, host=host: services.register(
        connection, host, "nova-compute", Desk.topic, 1)) for host in ("one", "two")}
    world.processes["one"].kill()
    bus.at(world.desk, "one").note(CTX, "order")
    eventually(lambda: listeners(world.transport, "desk.one") == 0, 10, "the broker has detected the closed connection")
    for service in made.values():  # compute-two still has a consumer and would register again
        Services(core).delete(CTX, service.uuid)
    core.db.close()
    assert world.queues("desk.one", "desk.two") == {"desk.two": 0}


def test_fanout_queue_of_a_dead_process_expires(new_world: Callable[..., World]) -> None:
    world = new_world("one", rabbit_transient_queues_ttl=2)
    world.desk.shout(CTX, "news")
    eventually(lambda: "news" in world.begun("one"), 10, "the server has received the fanout message")
    world.processes["one"].kill()
    # The exchange exists as long as a queue is bound to it.
    eventually(lambda: not world.exists("desk_fanout"), 20, "the fanout queue of the dead server has expired",
               interval=0.5)
