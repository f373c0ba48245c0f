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
