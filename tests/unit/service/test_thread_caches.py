"""Services run without the C library's caches of freed memory for each thread."""

import os
import platform
import subprocess
import sys
import textwrap

import pytest

from nova.service import thread_caches
from tests.paths import ROOT

SERVICES = ("api", "conductor", "scheduler", "compute")

pytestmark = pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library")

# Threads allocate blocks that other threads free; print the memory (KiB) that remains allocated at the end.
CHURN = """
    import ctypes, queue, random, sys, threading
    from nova.service import thread_caches

    {start}
    class Info(ctypes.Structure):
        _fields_ = [(name, ctypes.c_size_t) for name in (
            "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost")]

    libc = ctypes.CDLL(None)
    libc.mallinfo2.restype = Info
    libc.mallopt(-8, 1)
    work, done = queue.SimpleQueue(), threading.Barrier(21)
    def serve():
        numbers = random.Random(1)
        while (blocks := work.get()) is not None:
            del blocks
            work_again = [bytes(numbers.randrange(520, 1000)) for _ in range(100)]
            del work_again
        done.wait()
        done.wait()

    threads = [threading.Thread(target=serve, daemon=True) for _ in range(20)]
    [thread.start() for thread in threads]
    before = libc.mallinfo2().uordblks
    for _ in range(2000):
        work.put([bytes(random.randrange(520, 1000)) for _ in range(20)])
    [work.put(None) for _ in threads]
    done.wait()
    print((libc.mallinfo2().uordblks - before) // 1024, sys.argv[1:])
    done.wait()
    """


def churn(start, **environment):
    """Return the output of the program: the remaining KiB, and its arguments."""
    ran = subprocess.run([sys.executable, "-c", textwrap.dedent(CHURN.format(start=start)), "--an", "argument"],
                         cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
                         env={"PATH": os.environ["PATH"], **environment})
    kept, _, arguments = ran.stdout.partition(" ")
    assert arguments.strip() == "['--an', 'argument']"
    return int(kept)


def test_disabled_thread_caches_keep_no_memory_and_program_arguments():
    assert churn("thread_caches.disable()") < 500 < churn("")


def test_configured_glibc_tunables_are_kept():
    assert churn("thread_caches.disable()", GLIBC_TUNABLES="glibc.malloc.tcache_count=7") > 500
    assert churn("thread_caches.disable()", GLIBC_TUNABLES="glibc.malloc.trim_threshold=131072") < 500


def test_program_that_cannot_be_restarted_continues_with_caches(monkeypatch, capsys):
    monkeypatch.delenv("GLIBC_TUNABLES", raising=False)
    monkeypatch.setattr(sys, "executable", "/nowhere/python")
    thread_caches.disable()
    assert "continuing with them" in capsys.readouterr().err


@pytest.mark.parametrize("service", SERVICES)
def test_service_starts_without_thread_caches(service):
    """The service exits with a configuration error and prints its environment."""
    script = textwrap.dedent(f"""
        import atexit, os, sys
        from nova.cmd.{service} import main
        atexit.register(lambda: print(os.environ.get("GLIBC_TUNABLES")))
        sys.exit(main())
        """)
    ran = subprocess.run([sys.executable, "-c", script, "--config-file", "/nowhere.conf"], cwd=ROOT,
                         capture_output=True, text=True, timeout=120, check=False, env={"PATH": os.environ["PATH"]})
    assert ran.returncode == 1
    assert ran.stdout.split() == ["glibc.malloc.tcache_count=0"]
