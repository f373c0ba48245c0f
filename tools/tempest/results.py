"""Compares a run of tempest (subunit v2 on standard input) with the list of tests that must pass.

usage: results.py EXPECTED [--update]
"""

import argparse
import pathlib
import sys

import subunit
import testtools

HEADER = """\
# The tests of tempest that pass; tools/tempest/run.sh fails when one of them does not.
# Written by: tools/tempest/run.sh --update
"""


def outcomes(stream):
    """Test name (without the id in brackets) -> success, fail, skip, error of one run."""
    found = {}

    def note(test):
        name = test["id"].partition("[")[0]
        # A class that cannot be set up or torn down fails as "setUpClass (its name)".
        found[name] = "success" if test["status"] in ("success", "xfail") else test["status"]

    result = testtools.StreamToDict(note)
    result.startTestRun()
    subunit.ByteStreamToStreamResult(stream, non_subunit_name="stdout").run(result)
    result.stopTestRun()
    found.pop("stdout", None)
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("expected", type=pathlib.Path)
    parser.add_argument("--update", action="store_true")
    arguments = parser.parse_args()
    found = outcomes(sys.stdin.buffer)
    passed = {name for name, status in found.items() if status == "success"}
    failed = sorted(name for name, status in found.items() if status in ("fail", "error"))
    print(f"{len(passed)} passed, {len(failed)} failed, {len(found) - len(passed) - len(failed)} skipped")
    for name in failed:
        print(f"  failed: {name}")
    if arguments.update:
        arguments.expected.write_text(HEADER + "".join(f"{name}\n" for name in sorted(passed)))
        return 0
    lines = arguments.expected.read_text().splitlines()
    expected = {line for line in lines if line and not line.startswith("#")}
    for name in sorted(passed - expected):
        print(f"  passes now, not yet in the list: {name}")
    missing = sorted(expected - passed)
    for name in missing:
        print(f"  must pass, but: {found.get(name, 'did not run')}: {name}")
    print(f"{len(expected) - len(missing)} of {len(expected)} expected passes")
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
