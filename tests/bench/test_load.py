"""The benchmark's instruments: clients, the watcher, and CPU and memory of processes."""

import contextlib
import http.server
import json
import subprocess
import sys
import threading
import time

import pytest

from tools.bench import cpu, cycles
from tools.bench.load import Connection, Unexpected, Watcher, in_parallel, percentile


class Api(http.server.BaseHTTPRequestHandler):
    """An API that lists the servers of ``busy`` and returns the body of every POST."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self.server.lists += 1
        self.answer(200, json.dumps({"servers": [{"id": uuid} for uuid in self.server.busy]}).encode())

    def do_POST(self):
        self.answer(202, self.rfile.read(int(self.headers["Content-Length"])))

    def do_DELETE(self):
        self.send_response(204)
        self.end_headers()

    def answer(self, status, body):
        self.server.clients.add(self.client_address)
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


@pytest.fixture
def api():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Api)
    server.busy, server.lists, server.clients = set(), 0, set()
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.shutdown()
    server.server_close()


def connect(api):
    return Connection("127.0.0.1", api.server_address[1], {"X-Auth-Token": "t"})


def test_connection_is_reused_and_returns_complete_bodies(api):
    body = b"x" * 700_000
    with connect(api) as connection:
        assert [connection.request("POST", "/servers", body) for _ in range(3)] == [(202, body)] * 3
        assert connection.request("DELETE", "/servers/1") == (204, b"")
        assert connection.get("/servers") == {"servers": []}
    assert len(api.clients) == 1


def test_unexpected_status_raises(api):
    with connect(api) as connection, pytest.raises(Unexpected, match="POST /servers: 202"):
        connection.expect(200, "POST", "/servers", b"{}")


def test_watcher_wakes_waiters_when_their_server_is_no_longer_listed(api):
    api.busy = {"a", "b"}
    woken = []
    with Watcher(connect(api), "/servers", 0.01) as watcher:
        def wait(uuid):
            watcher.wait(uuid)
            woken.append(uuid)

        threads = [threading.Thread(target=wait, args=(uuid,)) for uuid in ("a", "b")]
        for thread in threads:
            thread.start()
        seen = api.lists
        while api.lists < seen + 3:
            time.sleep(0.005)
        assert woken == []
        api.busy = {"a"}
        threads[1].join(10)
        assert woken == ["b"]
        api.busy = set()
        threads[0].join(10)
        assert woken == ["b", "a"]
    # Without waiters, the watcher sends no requests.
    asked = api.lists
    time.sleep(0.1)
    assert api.lists == asked


def test_watcher_failure_raises_in_waiters(api):
    with Watcher(connect(api), "/servers", 0.01) as watcher:
        api.busy = [object()]  # cannot be listed, so the connection breaks
        with contextlib.redirect_stderr(None), pytest.raises((Unexpected, OSError)):
            watcher.wait("a")


def test_parallel_tasks_are_distributed_and_results_ordered(api):
    answers = in_parallel(4, list(range(20)), lambda: connect(api),
                          lambda connection, task: int(connection.expect(202, "POST", "/", str(task).encode())))
    assert answers == list(range(20))
    assert 1 <= len(api.clients) <= 4


def test_error_of_a_parallel_client_is_raised(api):
    with pytest.raises(Unexpected):
        in_parallel(2, [1, 2, 3], lambda: connect(api), lambda connection, _task: connection.expect(200, "DELETE", "/"))


def test_percentile_of_sorted_and_unsorted_values():
    assert percentile([3.0, 1.0, 2.0], 0.5) == 2.0
    assert percentile(list(range(1, 101)), 0.99) == 100
    assert percentile([7.0], 0.99) == 7.0


def test_cpu_and_memory_of_a_process_include_its_children():
    # The parent sleeps; a child in a separate session works, and another child has ended.
    work = "import time\nend = time.process_time() + 0.3\nwhile time.process_time() < end: pass\n"
    parent = (f"import subprocess, sys, time\nwork = {work!r}\nsubprocess.run([sys.executable, '-c', work])\n"
              "child = subprocess.Popen([sys.executable, '-c', work + 'print(1, flush=True)\\ntime.sleep(60)'],\n"
              "    start_new_session=True, stdout=subprocess.PIPE)\nchild.stdout.readline()\nprint(1, flush=True)\n"
              "try: time.sleep(60)\nfinally: child.kill()\n")
    with subprocess.Popen([sys.executable, "-c", parent], stdout=subprocess.PIPE, start_new_session=True) as process:
        try:
            process.stdout.readline()
            used = cpu.used({"both": [process.pid], "none": []})
            assert len(cpu.family(process.pid, cpu.table())) == 2
            assert used["both"] >= 0.55
            assert used["none"] == 0
            memory = cpu.memory(process.pid)
            assert memory["workers"] == 1
            assert 1 < memory["worker_rss"] < 100
            assert memory["all_pss"] >= memory["worker_pss"] > 0
        finally:
            for one in cpu.family(process.pid, cpu.table()):
                subprocess.run(["kill", "-9", str(one.pid)], check=False)


def test_memory_growth_of_a_service_is_that_of_its_largest_grower():
    """Compare unchanged workers, a growing beside a shrinking worker, and a replaced worker."""
    before = {"api": {1: 50.0, 2: 51.0}, "conductor": {3: 80.0, 4: 70.0}, "compute": {5: 45.0}}
    after = {"api": {1: 50.0, 2: 51.0}, "conductor": {3: 75.0, 4: 74.2}, "compute": {6: 46.0}}
    assert cycles.growth(before, after) == {"api": 0.0, "conductor": 4.2, "compute": 46.0}


def test_memory_of_each_worker_includes_its_allocations():
    """Run a process with two children, the second of which allocates 30 MB."""
    child = "import sys\nheld = b'x' * int(sys.argv[1])\nprint(1, flush=True)\nsys.stdin.read()"
    parent = (f"import subprocess, sys\nchildren = [subprocess.Popen([sys.executable, '-c', {child!r}, size],\n"
              "    stdin=subprocess.PIPE, stdout=subprocess.PIPE) for size in ('0', '30000000')]\n"
              "for one in children: one.stdout.readline()\nprint(1, flush=True)\nsys.stdin.read()\n"
              "for one in children: one.communicate()\n")
    with subprocess.Popen([sys.executable, "-c", parent], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          start_new_session=True) as process:
        try:
            process.stdout.readline()
            small, large = sorted(cpu.workers(process.pid).values())
            assert 25 < large - small < 35
        finally:
            process.communicate(b"")
