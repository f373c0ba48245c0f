"""Compare a test run (subunit v2 on standard input) with the lists of expected passes and skips.

usage: results.py DIRECTORY [--update]

DIRECTORY has expected-passes.txt and skips.txt; --update writes them. The run fails if a test fails, if an expected
test does not pass, or if a skipped test is missing in skips.txt.
"""

import argparse
import pathlib
import sys

import subunit
import testtools

PASSES = "# The tests that pass; run.sh fails when one of them does not.\n# Written by: run.sh --update\n"
SKIPS = ("# The tests that are skipped, and what is not there for them; all of a class by its name.\n"
         "# Written by: run.sh --update\n")


def outcomes(stream):
    """Test name (without the id in brackets) -> (success, fail or skip, why) of one run."""
    outcomes_by_test = {}

    def note(test):
        # A class that is skipped or fails in its setup is reported as "setUpClass (its name)".
        name = test["id"].partition("[")[0].removeprefix("setUpClass (").rstrip(")")
        status = {"success": "success", "xfail": "success", "skip": "skip"}.get(test["status"], "fail")
        reason = test["details"].get("reason")
        outcomes_by_test[name] = (status, " ".join(reason.as_text().split()) if reason else "")

    result = testtools.StreamToDict(note)
    result.startTestRun()
    subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    outcomes_by_test.pop("stdout", None)
    return outcomes_by_test


def lines(path):
    text = path.read_text() if path.exists() else ""
    return [line for line in text.splitlines() if line and not line.startswith("#")]


def write(path, header, content):
    path.write_text(header + "".join(f"{line}\n" for line in content))


def compare(results, directory):
    """Print the differences; return True if the run has failed."""
    expected = lines(directory / "expected-passes.txt")
    explained = {line.partition(": ")[0] for line in lines(directory / "skips.txt")}
    passed = {name for name, (status, _why) in results.items() if status == "success"}
    for name in sorted(passed.difference(expected)):
        print(f"  passes now, not yet in the list: {name}")
    wrong = [f"must pass, but: {results.get(name, ('did not run',))[0]}: {name}"
             for name in expected if name not in passed]
    for name, (status, why) in sorted(results.items()):
        if status == "fail":
            wrong.append(f"failed: {name}")
        elif status == "skip" and name not in explained:
            wrong.append(f"is skipped, but missing in skips.txt: {name}: {why}")
    for line in wrong:
        print(f"  {line}")
    return bool(wrong)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    results = outcomes(sys.stdin.buffer)
    of = {kind: sorted(name for name, (status, _why) in results.items() if status == kind)
          for kind in ("success", "fail", "skip")}
    print(f"{len(of['success'])} passed, {len(of['fail'])} failed, {len(of['skip'])} skipped")
    if arguments.update:
        write(arguments.directory / "expected-passes.txt", PASSES, of["success"])
        write(arguments.directory / "skips.txt", SKIPS, [f"{name}: {results[name][1]}" for name in of["skip"]])
    return 1 if compare(results, arguments.directory) else 0


if __name__ == "__main__":
    sys.exit(main())
