"""tools/run-tests.sh fails if a linter or a kind of tests fails. The programs that it calls are replaced."""

from __future__ import annotations

import os
import pathlib
import shutil
import signal
import subprocess
import time
from collections.abc import Callable

import pytest

ROOT = pathlib.Path(__file__).parents[2]
PROGRAMS = ("python", "ruff", "mypy", "lint-imports", "pytest")
# Prints its call. A call that contains FAIL fails; one that contains SLEEP takes a minute, and stores its process id.
PROGRAM = """#!/bin/sh
call="$(basename "$0") $*"
echo "called: $call"
case "$call" in *"$SLEEP"*) touch "$(dirname "$0")/running-$$"; exec sleep 60 ;; esac
case "$call" in *"$FAIL"*) exit 1 ;; esac
"""


@pytest.fixture
def script(tmp_path: pathlib.Path) -> pathlib.Path:
    """Return a copy of the script in a directory with a virtual environment of replaced programs."""
    (tmp_path / "tools").mkdir()
    programs = tmp_path / ".venv/bin"
    programs.mkdir(parents=True)
    for directory, names in ((programs, PROGRAMS), (tmp_path, ["dpkg"])):
        for name in names:
            (directory / name).write_text(PROGRAM)
            (directory / name).chmod(0o755)
    for name in ("setup.cfg", "constraints.txt"):
        (tmp_path / name).touch()
    (tmp_path / ".venv/.stamp").touch()
    (tmp_path / "tools/kubernetes").mkdir()
    (tmp_path / "tools/kubernetes/build.sh").write_text(PROGRAM)
    (tmp_path / "tools/kubernetes/build.sh").chmod(0o755)
    return pathlib.Path(shutil.copy(ROOT / "tools/run-tests.sh", tmp_path / "tools"))


def start(script: pathlib.Path, fail: str = "nothing", sleep: str = "nothing") -> subprocess.Popen[str]:
    root = script.parents[1]
    return subprocess.Popen(
        [script], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # ignored if the tests run in the background
        env={**os.environ, "PATH": f"{root}:{os.environ['PATH']}", "FAIL": fail, "SLEEP": sleep,
             "NOVA_BUILD_KUBERNETES": "1", "NOVA_TEST_VENV": ".venv", "TMPDIR": str(root)})


def test_all_tests_and_linters_run(script: pathlib.Path) -> None:
    process = start(script)
    output, _ = process.communicate(timeout=30)
    assert process.returncode == 0, output
    for call in ("ruff check", "mypy nova", "lint-imports", "pytest tests/unit", "pytest tests/functional",
                 "pytest tests/integration tests/bench", "pytest tests/crash", "pytest tests/fuzz", "build.sh",
                 "pytest tests/integration/federator"):
        assert f"called: {call}" in output


@pytest.mark.parametrize("call", ["ruff check", "mypy nova", "lint-imports", "pytest tests/unit",
                                  "pytest tests/functional", "pytest tests/integration tests/bench",
                                  "pytest tests/integration/federator", "build.sh", "pytest tests/crash",
                                  "pytest tests/fuzz"])
def test_one_failure_fails_the_run(script: pathlib.Path, call: str) -> None:
    process = start(script, fail=call)
    output, _ = process.communicate(timeout=30)
    assert process.returncode != 0
    assert "called: pytest tests/integration" in output
    assert "called: pytest tests/unit" in output


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_interrupt_ends_the_tests_in_the_background(script: pathlib.Path) -> None:
    process = start(script, sleep="pytest tests/")
    running = script.parents[1] / ".venv/bin"
    until(lambda: len(list(running.glob("running-*"))) == 3)
    os.killpg(process.pid, signal.SIGINT)
    process.communicate(timeout=40)  # less than the minute of the programs
    assert process.returncode == 130
    assert not list(script.parents[1].glob("tmp.*"))
    processes = [pathlib.Path("/proc", path.name.removeprefix("running-")) for path in running.glob("running-*")]
    until(lambda: not any(process.exists() for process in processes))
