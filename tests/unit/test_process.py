"""Release of free memory to the system. A separate process is used, as C library settings cannot be undone."""

import subprocess
import sys

_SCRIPT = """
import gc, threading, time
from nova.service import process
from nova.telemetry import worker_stats

process.tune_runtime()
process._CHECK_INTERVAL = 0.05
process.start_memory_trimming()
time.sleep(0.2)
before = worker_stats.resident()

class Knot:
    def __init__(self):
        self.me = self  # only the garbage collector can free it
        self.content = bytearray(2000)

def waste():
    knots = [Knot() for _ in range(4000)]

stopped = []
gc.callbacks.append(lambda phase, info: stopped.append(threading.current_thread().name))

with worker_stats.METER.work():
    threads = [threading.Thread(target=waste) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    peak = worker_stats.resident()
    time.sleep(0.5)
    while_busy = stopped.count("process")
end = time.monotonic() + 10
while worker_stats.resident() > before + (peak - before) / 3 and time.monotonic() < end:
    time.sleep(0.05)
print(before, peak, worker_stats.resident(), while_busy)
"""


def test_memory_of_a_burst_is_released_when_the_process_is_idle():
    done = subprocess.run([sys.executable, "-c", _SCRIPT], capture_output=True, text=True, check=True, timeout=60)
    before, peak, after, while_busy = map(int, done.stdout.split())
    assert while_busy == 0
    assert peak > before + 10 * 2**20
    assert after < before + (peak - before) / 3
