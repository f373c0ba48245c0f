"""The steps of the scale benchmark. Each step writes its measurements to the report immediately."""

from __future__ import annotations

import argparse
import contextlib
import json
import re
import statistics
import subprocess
import threading
import time
from collections.abc import Iterator
from typing import Any

from tools.bench import cpu
from tools.bench.load import Connection, in_parallel, percentile
from tools.bench.scale.report import Report
from tools.bench.scale.world import World, log_after, log_size, make_aggregates, selects

_CLIENTS = 10
# Boots one after the other, for how long a single one takes.
_PROBES = 15
_PAGE = 1000
_AUDIT = 900.0


class Steps:
    """The steps of a run. ``deadline`` (monotonic clock): no step begins after it."""

    def __init__(self, world: World, report: Report, args: argparse.Namespace, deadline: float) -> None:
        self.world, self.report, self.args, self.deadline = world, report, args, deadline
        self.created = 0
        self._samples: list[dict[str, Any]] = []

    # --- the fleet ---------------------------------------------------------------------------------
    def register(self, fleet: dict[str, Any]) -> None:
        """Start nova-compute and the scheduler; measure until the scheduler has read every node."""
        world, expected = self.world, sum(group["hosts"] * group["nodes"] for group in fleet["groups"])
        roots = world.roots()
        world.process("compute-1").start()
        meter = cpu.Meter({**roots, "compute": [world.process("compute-1").pid]})
        seconds = world.until("all nodes are registered", lambda: world.count("compute_nodes") >= expected,
                              self.deadline)
        ready = seconds + world.until("nova-compute is ready", lambda: world.said("compute-1", "is ready"),
                                      self.deadline)
        used = meter.stop()
        self.report.note("nodes", expected)
        self.report.note("register", {"nodes_s": round(seconds, 1), "ready_s": round(ready, 1),
                                      "cpu_s": _rounded(used.by_process)})
        began = time.monotonic()
        added = make_aggregates(world, fleet)
        self.report.note("aggregates", {"hosts_added": added, "seconds": round(time.monotonic() - began, 1)})
        self._scheduler("scheduler_start")
        self.report.note("rss_mb_empty", world.rss())
        self.report.note("database_mb_empty", world.database_mb())

    def _scheduler(self, name: str) -> None:
        """Start the scheduler and measure until it has read the fleet."""
        world, process = self.world, self.world.process("scheduler-1")
        offset, roots = log_size(process), world.roots()
        began = time.monotonic()
        process.start()
        meter = cpu.Meter({**roots, "scheduler": [process.pid]})
        pattern = re.compile(r"Read (\d+) compute nodes in ([\d.]+) s")
        world.until("the scheduler knows the fleet", lambda: pattern.search(log_after(process, offset)),
                    self.deadline, 0.05)
        match = pattern.search(log_after(process, offset))
        assert match is not None
        self.report.note(name, {"ready_s": round(time.monotonic() - began, 2), "fleet_read_s": float(match[2]),
                                "nodes": int(match[1]), "cpu_s": _rounded(meter.stop().by_process)})

    def idle(self, name: str, seconds: float) -> None:
        """Measure the cost of the idle suite."""
        if self._late():
            return
        _say(f"idle for {seconds:g} s")
        meter, counters = cpu.Meter(self.world.roots()), self.world.counters()
        time.sleep(seconds)
        used, counted = meter.stop(), counters.stop()
        self.report.note(name, {
            "cpu_percent": {process: round(100 * spent / used.seconds, 1) for process, spent in used.by_process.items()
                            if process != "client"},
            "messages_per_s": round(counted.published / counted.seconds, 1),
            "statements_per_s": round(counted.statements.data / counted.seconds, 1) if counted.statements else None})

    # --- creating ----------------------------------------------------------------------------------
    def fill(self, until: float) -> None:
        """Create the servers in ten parts, each measured; stops early at ``until``."""
        self._tenth(0, 0, until)
        for number in range(1, 11):
            target = self.args.instances * number // 10
            if time.monotonic() > until or self._late():
                self.report.note("fill_ended_early_at", self.created)
                return
            self._tenth(number, target, until)

    def _tenth(self, number: int, target: int, until: float) -> None:
        world, before = self.world, self.created
        scheduler, offset = world.process("scheduler-1"), log_size(world.process("scheduler-1"))
        meter, counters, began = cpu.Meter(world.roots()), world.counters(), time.monotonic()
        row: dict[str, Any] = {"tenth": number}
        singles = min(self.args.singles, target - before)
        if singles > 0:
            taken = self._singles(singles)
            row["singles_per_s"] = round(singles / taken, 1)
        batches_began, batches_before = time.monotonic(), self.created
        posts = []
        while self.created < target and time.monotonic() < until:
            posts.append(self._batch(min(self.args.batch, target - self.created)))
        seconds = time.monotonic() - began
        if self.created > before:
            created, used, counted = self.created - before, meter.stop(), counters.stop()
            in_batches = self.created - batches_before
            row.update({
                "boots_per_s": round(created / seconds, 1),
                "batch_boots_per_s": round(in_batches / (time.monotonic() - batches_began), 1) if in_batches else None,
                "post_batch_s": round(statistics.median(posts), 2) if posts else None,
                "cpu_ms_per_boot": _rounded(used.ms_by_process(created)),
                "cpu_ms_per_boot_all": round(used.ms_per(created), 1),
                "messages_per_boot": round(counted.published / created, 2),
                "statements_per_boot": round(counted.statements.data / created, 2) if counted.statements else None})
        row.update(self._measure_state(scheduler, offset))
        self._samples.append(row)
        self.report.note("tenths", self._samples)
        _say(f"{self.created} servers: {row}")

    def _measure_state(self, scheduler: Any, offset: int) -> dict[str, Any]:
        """Return measurements with the current number of servers."""
        world, row = self.world, {}
        probes = self._probe()
        chosen = selects(log_after(scheduler, offset))
        row["servers"], row["states"] = self.created, world.states()
        row["boot_alone_p50_ms"] = round(1000 * percentile(probes, 0.5), 1)
        row["select_one_p50_ms"] = statistics.median(chosen[1]) if 1 in chosen else None
        largest = max(chosen, default=1)
        row["select_batch"], row["select_batch_p50_ms"] = (
            (largest, statistics.median(chosen[largest])) if largest > 1 else (None, None))
        with world.connect() as connection:
            row["list_page_ms"] = _timed(connection, f"/servers/detail?limit={_PAGE}")
            row["list_100_ms"] = _timed(connection, "/servers/detail?limit=100")
            row["get_ms"] = _timed(connection, f"/servers/{self._some()}")
        row["rss_mb"], row["database_mb"] = world.rss(), world.database_mb()
        return row

    def _some(self) -> str:
        return str(self.world.query("SELECT uuid FROM instances WHERE NOT deleted ORDER BY id DESC LIMIT 1")[0][0])

    def _body(self, count: int) -> bytes:
        server = {"name": "scale", "flavorRef": "tiny", "imageRef": self.world.cluster.api.image_id,
                  "networks": "auto" if self.args.network else "none"}
        if count > 1:
            server.update(min_count=count, max_count=count)
        return json.dumps({"server": server}).encode()

    def _singles(self, count: int) -> float:
        """Create ``count`` servers with one request each, by several concurrent clients; return the seconds."""
        began = time.monotonic()
        in_parallel(_CLIENTS, [self._body(1)] * count, self.world.connect,
                    lambda connection, body: connection.expect(202, "POST", "/servers", body))
        self._settle()
        self.created += count
        return time.monotonic() - began

    def _batch(self, count: int) -> float:
        """Create ``count`` servers with one request and wait until all are built; return the time of the request."""
        began = time.monotonic()
        with self.world.connect() as connection:
            connection.expect(202, "POST", "/servers", self._body(count))
        posted = time.monotonic() - began
        self._settle()
        self.created += count
        _say(f"{self.created} servers ({count / (time.monotonic() - began):.0f}/s)", again=True)
        return posted

    def _settle(self) -> None:
        self.world.until("no operation is under way", lambda: self.world.under_way() == 0, self.deadline + 300, 0.1)

    def _probe(self) -> list[float]:
        """Boot single servers sequentially; return the seconds from POST to ACTIVE."""
        times = []
        with self.world.connect() as connection:
            for _ in range(_PROBES):
                began = time.monotonic()
                made = json.loads(connection.expect(202, "POST", "/servers", self._body(1)))["server"]["id"]
                path = f"/servers/{made}"
                while connection.get(path)["server"]["status"] == "BUILD":
                    time.sleep(0.005)
                times.append(time.monotonic() - began)
                self.created += 1
        self._settle()
        return times

    # --- the full cloud ----------------------------------------------------------------------------
    def lists(self) -> None:
        """Measure the pages of all servers, without and with details."""
        with self.world.connect() as connection:
            for name, path in (("list_all_brief", "/servers"), ("list_all_detail", "/servers/detail")):
                if self._late():
                    return
                _say(name)
                pages, seen, began = [], 0, time.monotonic()
                marker = ""
                while True:
                    started = time.monotonic()
                    page = connection.get(f"{path}?limit={_PAGE}{marker}")["servers"]
                    pages.append(1000 * (time.monotonic() - started))
                    seen += len(page)
                    if len(page) < _PAGE:
                        break
                    marker = f"&marker={page[-1]['id']}"
                full = pages[:-1] or pages
                self.report.note(name, {
                    "servers": seen, "seconds": round(time.monotonic() - began, 1),
                    "first_page_ms": round(pages[0], 1), "last_full_page_ms": round(full[-1], 1),
                    "page_p50_ms": round(statistics.median(full), 1)})
            for name, path in (("hypervisors_page_ms", "/os-hypervisors/detail?limit=1000"),
                               ("services_ms", "/os-services")):
                if not self._late():
                    self.report.note(name, _timed(connection, path))

    def restarts(self) -> None:
        """Restart the scheduler and nova-compute with all servers present."""
        if self._late():
            return
        world = self.world
        _say("restarts")
        world.process("scheduler-1").stop(60)
        self._scheduler("scheduler_start_full")
        process = world.process("compute-1")
        began = time.monotonic()
        process.stop(120)
        stopped, offset = time.monotonic() - began, log_size(process)
        began = time.monotonic()
        process.start()
        meter = cpu.Meter({**world.roots(), "compute": [process.pid]})
        world.until("nova-compute is ready", lambda: "is ready" in log_after(process, offset), self.deadline + 120)
        self.report.note("compute_restart_full", {
            "stop_s": round(stopped, 1), "ready_s": round(time.monotonic() - began, 1),
            "cpu_s": _rounded(meter.stop().by_process)})
        self.report.note("rss_mb_full", world.rss())
        self.report.note("tables_mb_full", world.tables_mb())

    def audit(self) -> None:
        """Run the consistency audit."""
        if self._late():
            return
        _say("audit")
        began = time.monotonic()
        name = "audit_full" if "audit_full" not in self.report.values else "audit_end"
        try:
            done = self.world.cluster._run("manage", ("audit",), _AUDIT)
        except subprocess.TimeoutExpired:
            self.report.note(name, {"seconds": f"more than {_AUDIT:g}"})
            return
        self.report.note(name, {"seconds": round(time.monotonic() - began, 1), "findings": len(
            done.stdout.splitlines()), "first": done.stdout[:500], "status": done.returncode})

    def delete(self, wanted: int | None) -> None:
        """Delete servers one by one, oldest first, in ten parts."""
        ids = [row[0] for row in self.world.query("SELECT uuid FROM instances WHERE NOT deleted ORDER BY id")]
        ids = ids[:wanted if wanted is not None else len(ids)]
        rows: list[dict[str, Any]] = []
        for number in range(10):
            part = ids[len(ids) * number // 10:len(ids) * (number + 1) // 10]
            if not part or self._late():
                break
            meter, counters, began = cpu.Meter(self.world.roots()), self.world.counters(), time.monotonic()
            with self._watched(f"deleting {len(part)}"):
                late = in_parallel(_CLIENTS, part, self.world.connect, self._delete)
            self._settle()
            done, seconds = len(part) - sum(late), time.monotonic() - began
            used, counted = meter.stop(), counters.stop()
            rows.append({
                "deleted": done, "deletes_per_s": round(done / seconds, 1),
                "cpu_ms_per_delete": _rounded(used.ms_by_process(done)),
                "cpu_ms_per_delete_all": round(used.ms_per(done), 1),
                "messages_per_delete": round(counted.published / max(done, 1), 2),
                "statements_per_delete": round(counted.statements.data / max(done, 1), 2)
                if counted.statements else None, "database_mb": self.world.database_mb()})
            self.report.note("deletes", rows)
            _say(f"deleted: {rows[-1]}")
        self.report.note("left", self.world.states())
        self.report.note("rss_mb_end", self.world.rss())

    def _delete(self, connection: Connection, uuid: str) -> bool:
        if self._late():
            return True
        connection.expect(204, "DELETE", f"/servers/{uuid}")
        return False

    @contextlib.contextmanager
    def _watched(self, what: str) -> Iterator[None]:
        """Print the progress every 15 seconds."""
        ended, before, began = threading.Event(), self.world.count("instances WHERE deleted"), time.monotonic()

        def watch() -> None:
            while not ended.wait(15):
                done = self.world.count("instances WHERE deleted") - before
                _say(f"{what}: {done} ({done / (time.monotonic() - began):.0f}/s)", again=True)

        thread = threading.Thread(target=watch, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()

    def _late(self) -> bool:
        return time.monotonic() > self.deadline


def _timed(connection: Connection, path: str) -> float:
    """Return the milliseconds of a GET: the median of five."""
    times = []
    for _ in range(5):
        began = time.monotonic()
        connection.expect(200, "GET", path)
        times.append(1000 * (time.monotonic() - began))
    return round(statistics.median(times), 1)


def _rounded(values: dict[str, float]) -> dict[str, float]:
    return {name: round(value, 2) for name, value in values.items() if name != "client"}


def _say(text: str, again: bool = False) -> None:
    print(f"{time.strftime('%H:%M:%S')}  {'  ' if again else ''}{text}", flush=True)


