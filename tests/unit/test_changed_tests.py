"""Tests that ``tools/run-tests.sh changed`` selects."""

from tests.paths import ROOT
from tools import changed_tests


def test_changed_module_selects_its_unit_tests_and_its_group():
    selected = changed_tests.tests_of(["nova/db/volumes/volumes.py", "doc/api.md"])
    assert {"tests/functional/volumes", "tests/integration/db", "tests/unit/conductor/volumes/test_volumes.py",
            "tests/unit/test_house.py"} <= set(selected)
    assert not any("libvirt" in path or "networks" in path for path in selected)


def test_changed_test_selects_itself():
    path = "tests/functional/networks/test_floating_ips.py"
    assert changed_tests.tests_of([path]) == [path, "tests/unit/test_house.py"]


def test_folders_of_all_groups_exist():
    assert [path for paths in changed_tests._GROUPS.values() for path in paths if not (ROOT / path).exists()] == []
