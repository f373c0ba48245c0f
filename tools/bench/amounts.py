"""Amounts of work of a benchmark run."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class Amounts:
    """``boots``: servers by number of clients; ``idle`` and ``read``: seconds; ``growth``: servers at each point.

    ``background_servers``: servers that one project creates, ``fair``: seconds during which the servers of another
    project are measured meanwhile; ``overload``: seconds of each load; ``prices``: rounds of each; ``suite``: deploy
    the suite of Nova, which occupies its well-known ports; ``million``: live and deleted servers whose lists are
    measured on each of the ``databases``; ``cycles``: boots and deletes for the measurement of memory growth;
    ``placements``: Deployments that the federator places at a rate; ``burst``: Deployments, and as many ConfigMaps,
    that are created at once; ``clusters``, ``objects``: simulated clusters and the ConfigMaps in them, of which the
    policy of ``edited`` is changed.
    """

    boots: dict[int, int]
    counted: int
    idle: float
    starts: int
    listed: int
    read: float
    growth: tuple[int, ...]
    growth_boots: int
    growth_rounds: int
    resizes: int
    background_servers: int
    fair: float
    overload: float
    sizes: tuple[int, ...] = (10, 1000, 10_000)
    selects: int = 5
    prices: int = 5
    suite: bool = True
    cycles: int = 20_000
    million: tuple[int, int] = (100_000, 918_000)
    databases: tuple[str, ...] = ("sqlite", "postgresql", "mariadb")
    placements: int = 300
    burst: int = 5000
    clusters: int = 500
    objects: int = 30_000
    edited: int = 1000


FULL = Amounts(boots={1: 60, 10: 300, 20: 800}, counted=100, idle=60.0, starts=5, listed=1000, read=5.0,
               growth=(1000, 5000, 10_000, 20_000), growth_boots=300, growth_rounds=3, resizes=300,
               background_servers=10_000, fair=60.0, overload=20.0, selects=9, prices=9)
QUICK = Amounts(boots={1: 20, 10: 100, 20: 240}, counted=30, idle=20.0, starts=3, listed=1000, read=1.2,
                growth=(1000, 20_000), growth_boots=100, growth_rounds=5, resizes=100, background_servers=1500,
                fair=20.0, overload=6.0, million=(10_000, 90_000), cycles=1000, placements=75, burst=500,
                clusters=100, objects=1000, edited=100)
# Minimal amounts, for the test of the benchmarks.
TINY = Amounts(boots={1: 2, 10: 5, 20: 5}, counted=10, idle=10.0, starts=1, listed=30, read=0.2, growth=(30, 60),
               growth_boots=5, growth_rounds=1, resizes=5, background_servers=20, fair=2.0, overload=1.0, selects=1,
               prices=1, suite=False, million=(200, 800), databases=("sqlite",), cycles=10, placements=5,
               burst=5, clusters=6, objects=20, edited=5)
