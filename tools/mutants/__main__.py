"""Proof that the tests detect faults: run the tests of each mutant, at least one of which must fail.

    python -m tools.mutants                            # all mutants
    python -m tools.mutants --jobs 2 boot-order-reversed full-page-without-next-link
    python -m tools.mutants --list

Each mutant is applied to a copy of the working tree in a temporary directory. A failed test counts only if it passes on
the unchanged copy. Exits with 1 if a mutant survives, its tests cannot run, or its declaration does not fit the code.
"""

from __future__ import annotations

import argparse
import concurrent.futures
import dataclasses
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence

from tools.mutants import ROOT, Mutant, load

# First failed test, or test whose fixture failed, in the summary of pytest.
_FAILED = re.compile(r"^(?:FAILED|ERROR) (tests/.+?)(?: - .*)?$", re.MULTILINE)
# Exit codes of pytest: all tests passed; some failed; no test was collected.
_PASSED, _SOME_FAILED, _NONE_COLLECTED = 0, 1, 5


@dataclasses.dataclass(frozen=True)
class Result:
    """The outcome of a mutant: the test that detected it, or the reason why it counts as undetected."""

    mutant: Mutant
    seconds: float
    detected_by: str = ""
    problem: str = ""


@dataclasses.dataclass(frozen=True)
class Tree:
    """A copy of the repository in which tests run."""

    path: pathlib.Path

    @classmethod
    def of_working_tree(cls, path: pathlib.Path) -> Tree:
        """Copy all files except ignored ones, and compile them once for all mutants."""
        listed = subprocess.run(["git", "ls-files", "-coz", "--exclude-standard"], cwd=ROOT, check=True,
                                capture_output=True, text=True).stdout.split("\0")
        for name in filter(None, listed):
            if (ROOT / name).is_file():
                (path / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, path / name)
        tree = cls(path)
        tree.run(["-m", "compileall", "-q", "nova", "tests", "tools"], 600)
        code, imported = tree.run(["-c", "import nova; print(nova.__file__)"], 60)
        if code or not pathlib.Path(imported.strip()).is_relative_to(path):
            raise SystemExit(f"Tests would not import the copy of nova in {path}, but {imported.strip()}")
        return tree

    def copy(self, path: pathlib.Path) -> Tree:
        shutil.copytree(self.path, path)
        return Tree(path)

    def run(self, arguments: Sequence[str], limit: float) -> tuple[int, str]:
        """Run Python in the tree; return its exit code and output. Raises TimeoutExpired after ``limit`` seconds."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.path, env={**os.environ, "PYTHONPATH": str(self.path)}, text=True,
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, start_new_session=True)
        try:
            output, _errors = process.communicate(timeout=limit)
        except BaseException:
            os.killpg(process.pid, signal.SIGKILL)
            process.communicate()
            raise
        return process.returncode, output

    def tests(self, paths: Sequence[str], limit: float) -> tuple[int, str]:
        """Run these tests until the first failure; return pytest's exit code and output."""
        return self.run(["-m", "pytest", "-q", "-x", "-rfE", "--tb=no", "-p", "no:cacheprovider", *paths], limit)


def check(mutant: Mutant, unchanged: Tree, place: pathlib.Path, limit: float) -> Result:
    """Apply a mutant to a copy of the unchanged tree and run its tests, each run for at most ``limit`` seconds."""
    start = time.monotonic()

    def result(detected_by: str = "", problem: str = "") -> Result:
        return Result(mutant, time.monotonic() - start, detected_by, problem)

    try:
        source = (unchanged.path / mutant.file).read_text()
        changed = mutant.apply(source)
    except (OSError, ValueError) as error:
        return result(problem=str(error))
    tree = unchanged.copy(place / mutant.name)
    try:
        _write(tree.path / mutant.file, changed)
        code, output = tree.tests(mutant.tests, limit)
        failed = _FAILED.search(output)
        if code in (_PASSED, _NONE_COLLECTED):
            return result(problem="SURVIVED: all its tests pass or are skipped")
        if code != _SOME_FAILED or failed is None:
            return result(problem=f"its tests cannot run: {' '.join(output.split())[-300:]}")
        _write(tree.path / mutant.file, source)
        code, output = tree.tests([failed[1]], limit)
        if code != _PASSED:
            return result(problem=f"{failed[1]} fails without the mutant, too")
        return result(detected_by=failed[1])
    except subprocess.TimeoutExpired:
        return result(problem=f"its tests did not end within {limit:.0f} s")
    finally:
        shutil.rmtree(tree.path, ignore_errors=True)


def _write(path: pathlib.Path, source: str) -> None:
    """Replace a module, and discard its compiled form, which Python would recognize by time and size only."""
    for compiled in (path.parent / "__pycache__").glob(f"{path.stem}.*.pyc"):
        compiled.unlink()
    path.write_text(source)


def main(argv: Sequence[str] | None = None) -> int:
    mutants = load()
    options = _options(mutants, argv)
    chosen = [mutant for mutant in mutants if not options.names or mutant.name in options.names]
    width = max(len(mutant.name) for mutant in chosen)
    if options.list:
        for mutant in chosen:
            print(f"{mutant.name:{width}}  {mutant.file}\n{'':{width}}  {mutant.fault}")
        return 0
    start, undetected = time.monotonic(), 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as directory:
        place = pathlib.Path(directory)
        unchanged = Tree.of_working_tree(place / "unchanged")
        print(f"{'mutant':{width}}  seconds  detected by", flush=True)
        with concurrent.futures.ThreadPoolExecutor(options.jobs) as pool:
            for done in concurrent.futures.as_completed([
                    pool.submit(check, mutant, unchanged, place, options.limit) for mutant in chosen]):
                result = done.result()
                undetected += bool(result.problem)
                print(f"{result.mutant.name:{width}}  {result.seconds:7.0f}  "
                      f"{result.detected_by or f'not detected: {result.problem}'}", flush=True)
    print(f"{len(chosen) - undetected} of {len(chosen)} mutants detected in {time.monotonic() - start:.0f} s")
    return 1 if undetected else 0


def _options(mutants: Sequence[Mutant], argv: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tools.mutants", description="Run the tests of mutants.")
    parser.add_argument("names", nargs="*", metavar="NAME", help="mutants to run (default: all)")
    parser.add_argument("--list", action="store_true", help="list the mutants and exit")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="number of mutants that run at a time")
    parser.add_argument("--limit", type=float, default=900, metavar="SECONDS",
                        help="time limit of the tests of a mutant (default: 900)")
    options = parser.parse_args(argv)
    unknown = sorted(set(options.names) - {mutant.name for mutant in mutants})
    if unknown:
        parser.error(f"there is no mutant {', '.join(unknown)}; see --list")
    return options


if __name__ == "__main__":
    sys.exit(main())
