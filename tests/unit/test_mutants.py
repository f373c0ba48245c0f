"""Declarations of mutants: each still fits the code that it changes."""

import ast
import collections

import pytest

from tests.paths import ROOT
from tools import mutants

DECLARED = mutants.load()


def test_forty_mutants_have_unique_names():
    assert len(DECLARED) == len({mutant.name for mutant in DECLARED}) == 40


@pytest.mark.parametrize("mutant", DECLARED, ids=lambda mutant: mutant.name)
def test_mutant_changes_its_file_in_exactly_one_place(mutant):
    source = (ROOT / mutant.file).read_text()
    changed = mutant.apply(source)
    assert ast.dump(ast.parse(changed)) != ast.dump(ast.parse(source))


def test_tests_of_all_mutants_exist():
    paths = {path for mutant in DECLARED for path in mutant.tests}
    assert [path for path in paths if not path.startswith("tests/") or not (ROOT / path).exists()] == []


def test_before_matches_rewrapped_code_and_no_part_of_a_name():
    mutant = mutants.Mutant(name="m", file="f", fault="A fault.", before="not ready(first, second)", after="True",
                            tests=["tests"])
    assert mutant.apply("if not ready(\n        first,\n        second):") == "if True:"
    for source in ("", "not already(first, second)", "notready(first, second)", "not ready(first, seconds)",
                   "not ready(first, second)\n" * 2):
        with pytest.raises(ValueError, match="times in f, not once"):
            mutant.apply(source)


def test_mutants_cover_all_layers():
    layers = collections.Counter("/".join(mutant.file.split("/")[:2]) for mutant in DECLARED)
    assert layers.keys() == {f"nova/{name}" for name in (
        "api", "conductor", "db", "network", "novad", "operations", "policies", "scheduler", "virt")}
