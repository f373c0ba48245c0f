"""Thousands of boots and deletes leave no entries per server in any container of the processes."""

import collections
import concurrent.futures
import functools
import gc
import logging
import time

import pytest

from tests.functional.client import Client

CLIENTS = 4
# Numbers of servers that warm up bounded caches, and of servers that are measured.
WARM_UP, CYCLES = 40, 150
# Growth by this number means an entry for each server.
LIMIT = 0.9 * CYCLES
# Seconds until data of a server expire: a lease (4 s here) and the next cleanup pass.
FORGOTTEN = 20

CONTAINERS = (dict, list, set, collections.deque)
# Statements that SQLite has prepared (at most 128 in each connection), and those that SQLAlchemy has compiled: a cache
# of statements with one for each server would itself be a container that grows. Each thread has weak references to its
# local data; those of servers would be in a container, too.
BOUNDED = ("sqlite3.Statement", "sqlalchemy.", "weakref.")


@pytest.fixture(autouse=True)
def no_log_records():
    """Pytest stores the log records of a test, several for each server."""
    logging.disable(logging.CRITICAL)
    yield
    logging.disable(logging.NOTSET)


def cycles(suite, flavor, image_id, count):
    """Boot and delete servers, some at a time."""
    def cycle(_number):
        client = Client(suite.url)
        uuid = client.boot(flavor, image_id)
        client.wait(uuid, "ACTIVE", seconds=60)
        client.delete(f"/servers/{uuid}")
        client.wait_gone(uuid, seconds=60)

    with concurrent.futures.ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(cycle, range(count)))


def containers():
    """Return all containers of this process by address; gc tracks no dictionaries of strings, but their holders."""
    found = {}
    for tracked in gc.get_objects():
        for one in (tracked, *gc.get_referents(tracked)):
            if isinstance(one, CONTAINERS):
                found[id(one)] = one
    found.pop(id(found), None)
    return found


def sizes(suite):
    """Return the number of entries of each container, and of objects of each class."""
    suite.statements.take()
    gc.collect()
    classes = collections.Counter(f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_objects()
                                  if type(one).__module__ != "builtins")
    return {address: len(one) for address, one in containers().items()}, classes


def described(container):
    """Return the type, the first entries and the holders of a container, for debugging."""
    holders = {f"{type(one).__module__}.{type(one).__qualname__}" for one in gc.get_referrers(container)}
    return f"{type(container).__qualname__} held by {sorted(holders)}: {str(container)[:200]}"


def grown(suite, before):
    """Return descriptions of containers with an entry or object per server since ``before``."""
    old_sizes, old_classes = before
    new_sizes, classes = sizes(suite)
    addresses = {address for address, entries in new_sizes.items()
                 if address in old_sizes and entries - old_sizes[address] >= LIMIT}
    found = [described(one) for address, one in containers().items() if address in addresses] if addresses else []
    return found + [f"{count - old_classes[name]} objects of {name}" for name, count in classes.items()
                    if count - old_classes[name] >= LIMIT and not name.startswith(BOUNDED)]


def test_boots_and_deletes_do_not_grow_any_container(suite, flavor, image_id):
    cycles(suite, flavor, image_id, WARM_UP)
    before = sizes(suite)
    cycles(suite, flavor, image_id, CYCLES)
    end = time.monotonic() + FORGOTTEN
    while (found := grown(suite, before)) and time.monotonic() < end:
        time.sleep(1)
    assert found == []


def test_leak_check_detects_containers_that_grow_per_server(suite):
    """Check a dictionary of strings, which gc does not track, a cache and a list."""
    @functools.cache
    def cached(number):
        return number

    class Holder:
        names = {}

    numbers = list(range(int(LIMIT)))
    held = [Holder.names, cached]
    before = sizes(suite)
    for number in numbers:
        Holder.names[str(number)] = str(number)
        cached(number)
        held.append(number)
    found = grown(suite, before)
    assert [one for one in found if one.startswith("dict held") and "_lru_cache_wrapper" in one]
    assert [one for one in found if one.startswith("dict held") and "{'0': '0'" in one]
    assert [one for one in found if one.startswith("list held") and "_lru_cache_wrapper" not in one]
