"""Concurrent first use of types: msgspec 0.22 crashes unless the types were prepared."""

import subprocess
import sys

# Appended to a script that defines ``kinds``, 300 types: four threads use each type for the first time concurrently.
_TOGETHER = """
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(4)

def first():
    for kind in kinds:
        barrier.wait()
        use(kind)

threads = [threading.Thread(target=first) for _ in range(4)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""


def race(kinds):
    done = subprocess.run([sys.executable, "-c", kinds + _TOGETHER], capture_output=True, text=True, timeout=60,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")


_STRUCTS = """
from __future__ import annotations
import sys, threading
import msgspec
from nova import bus
from nova.objects.base import Object

kinds = []
for number in range(300):
    for inner in range(5):
        exec(f"class Inner{inner}_{number}(Object, kw_only=True):\\n    one: int = 1\\n    two: str = ''")
    fields = "".join(f"    field_{field}: list[Inner{field % 5}_{number}] | None = None\\n" for field in range(30))
    exec(f"class Kind{number}(Object, kw_only=True):\\n    must: int\\n{fields}")
    kinds.append(globals()[f"Kind{number}"])
bus.prepare()

def use(kind):
    msgspec.convert({"must": 1, "field_3": [{"one": 2}]}, kind)
"""


def test_concurrent_first_use_of_structs_does_not_crash():
    race(_STRUCTS)


_ANSWERS = """
from __future__ import annotations
import sys, threading
from typing import TypedDict
import requests
from nova import service_clients

kinds = []
for number in range(300):
    inner = TypedDict(f"Inner{number}", {"one": int, "two": str}, total=False)
    kinds.append(TypedDict(f"Kind{number}", {f"field_{field}": list[inner] for field in range(30)}, total=False))
answer = requests.Response()
answer._content = b'{"field_3": [{"one": 2}]}'

def use(kind):
    service_clients.decode_response(answer, kind)
"""


def test_concurrent_first_decoding_of_service_responses_does_not_crash():
    race(_ANSWERS)


# A forked process per round decodes every struct of novad for the first time, each in eight threads at once.
_NOVAD = """
import contextlib, json, os, sys, threading
import msgspec
from nova.common.structs import subclasses
from nova.novad import server
from nova.novad.daemon import Daemon
from nova.novad.options import Options

daemon = Daemon(Options(data_dir=sys.argv[1], listen="tcp://127.0.0.1:1"), None, None)
kinds = [kind for kind in subclasses(msgspec.Struct) if kind.__module__.startswith("nova.novad.")]
assert {"Assignment", "Index", "Platform", "Deployed", "Node"} <= {kind.__name__ for kind in kinds}
sys.setswitchinterval(1e-6)

def first(barrier):
    for kind in kinds[::-1]:  # Structs that contain others first.
        barrier.wait()
        with contextlib.suppress(msgspec.ValidationError):
            msgspec.json.decode(json.dumps({field: 1 for field in kind.__struct_encode_fields__[-1:]}), type=kind)

for _round in range(10):
    if not (child := os.fork()):
        barrier = threading.Barrier(8)
        threads = [threading.Thread(target=first, args=(barrier,)) for _number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        os._exit(0)
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"a thread crashed the process: status {status}")
"""


def test_concurrent_first_calls_do_not_crash_novad(tmp_path):
    done = subprocess.run([sys.executable, "-c", _NOVAD, tmp_path], capture_output=True, text=True, timeout=120,
                          check=False)
    assert (done.returncode, done.stderr) == (0, "")
