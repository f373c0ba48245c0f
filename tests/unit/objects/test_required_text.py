"""Texts required by a regular expression: contained in every match, and useful as a condition."""

from __future__ import annotations

import random
import time

import pytest
import re2

from nova.objects import expression, required_text
from nova.objects.required_text import Required


def holds(required: Required, text: str) -> bool:
    return all(part in text for part in required.texts) and all(
        any(holds(part, text) for part in choice) for choice in required.choices)


@pytest.mark.parametrize(("pattern", "texts", "choices"), [
    ("(nothing|nobody)", [], [["nothing", "nobody"]]), ("server-0.*77$", ["server-0", "77"], []),
    (r"web\.example\.org", ["web.example.org"], []), ("^web[0-9]+-prod", ["web", "-prod"], []),
    ("ab+cd?e", ["ab"], []), ("a{2}bc{0,3}de", ["de"], []), ("(?:abc)+x", ["abc"], []), ("(abc)*xy", ["xy"], []),
    ("x(ab|cd)yz", ["yz"], [["ab", "cd"]])])
def test_required_texts_of_common_expressions(pattern: str, texts: list[str], choices: list[list[str]]) -> None:
    required = required_text.of(pattern)
    assert list(required.texts) == texts
    assert [[part.texts[0] for part in choice] for choice in required.choices] == choices


@pytest.mark.parametrize("pattern", [
    "", ".*", "^$", "a", "(a|bc)", "(abc|)", r"\Qabc\E", r"\x61bc", "(?i)abc", "[[:alpha:]]bc", "(?-i:abc)", r"\pLabc",
    "abc{", "(abc", "abc)", "abc|", r"ab\1", "(" * 600 + "abc" + ")" * 600])
def test_required_text_is_empty_for_ambiguous_expressions(pattern: str) -> None:
    assert required_text.of(pattern) == Required()


@pytest.mark.parametrize("seed", range(5))
def test_required_texts_are_contained_in_every_match(seed: int) -> None:
    """Use expressions and texts from a small alphabet, so that many texts match."""
    rng = random.Random(seed)
    matched = conditions = 0
    for _round in range(1500):
        pattern = "".join(rng.choice(["a", "b", "ab", "ba", "|", "(", "(?:", ")", "*", "+", "?", "{2}", "{0,1}", ".",
                                      "^", "$", "[ab]", "[^a]", r"\w", r"\.", r"\b", "-", "{", "}", "é"])
                          for _part in range(rng.randint(1, 9)))
        try:
            compiled = re2.compile(pattern, options=_quiet())
        except re2.error:
            continue
        required = required_text.of(pattern)
        conditions += bool(required.size)
        for _text in range(20):
            text = "".join(rng.choice("ab-.é") for _char in range(rng.randint(0, 8)))
            if compiled.search(text):
                matched += 1
                assert holds(required, text), (pattern, text, required)
    assert matched > 700
    assert conditions > 30


def test_required_text_of_the_longest_expressions_takes_linear_time() -> None:
    """Costs are linear in the length; a factor of forty would be quadratic here."""
    def cost(pattern: str) -> float:
        """Return the minimum of several rounds, to exclude garbage collection and other processes."""
        rounds = []
        for _round in range(20):
            began = time.process_time()
            required_text.of(pattern)
            rounds.append(time.process_time() - began)
        return min(rounds)

    for part in ("a", "(a", "[a]", "a|", "ab+", r"\.", "[", "(ab|cd)", "a{2}"):
        short = (part * expression.LONGEST)[:expression.LONGEST // 8]
        assert cost(part * (expression.LONGEST // len(part))) < 40 * max(cost(short), 0.00005), part


def _quiet() -> re2.Options:
    options = re2.Options()
    options.log_errors = False
    return options
