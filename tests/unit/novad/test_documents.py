"""Limits of the cost of YAML documents, and errors with a line and a column."""

import contextlib
import re
from typing import Annotated

import hypothesis
import msgspec
import pytest
import yaml
from hypothesis import strategies as st

from nova.common.errors import Invalid
from nova.novad import documents, platform
from tests.unit.novad.platforms import parse

LEVELS = range(1, 9)
LOCATED = re.compile(r"line \d+, column \d+: ")
# Texts that expand far beyond their length or take more than linear time, with the violated limit.
COSTLY = {
    "aliases of lists": ("a0: &a0 [x]\n" + "".join(
        f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in LEVELS), "20000 values"),
    "aliases of tables": ("a0: &a0 {x: y}\n" + "".join(
        f"a{n}: &a{n} {{{', '.join(f'k{i}: *a{n - 1}' for i in range(9))}}}\n" for n in LEVELS), "20000 values"),
    "merges": ("a0: &a0 {x: y}\n" + "".join(
        f"a{n}: &a{n} {{<<: [{', '.join([f'*a{n - 1}'] * 9)}]}}\n" for n in LEVELS), "20000 values"),
    "merges in a row": ("a0: &a0 {" + ", ".join(f"k{n}: v" for n in range(100)) + "}\n" + "".join(
        f"a{n}: &a{n} {{<<: [*a{n - 1}, *a{n - 1}]}}\n" for n in range(1, 30)), "20000 values"),
    "aliases of a long text": (f"a: &a {'x' * 100000}\n" + "".join(f"b{n}: *a\n" for n in range(1000)), "20000 values"),
    "an alias as a key": ("a: &a x\n" + "".join(f"? [*a, {n}]\n: y\n" for n in range(10000)), "20000 values"),
    "an alias of what contains it": ("a: &a {b: [*a]}", "a collection that contains it"),
    "a long list": (f"a: [{'x,' * 100_000}]", "20000 values"),
    "a long table": ("".join(f"k{n}: 1\n" for n in range(50_000)), "20000 values"),
    "deep lists": ("[" * 50_000 + "]" * 50_000, "32 levels"),
    "deep tables": ("".join(f"{' ' * n}a:\n" for n in range(500)), "32 levels"),
    "a number of base 60": ("a: 1" + ":1" * 100_000, "more than 100 characters"),
    "a long number": ("a: 1" + "0" * 100_000, "more than 100 characters"),
    "a long fraction": ("a: 1." + "0" * 100_000, "more than 100 characters")}
TAGS = ["!!python/object/apply:os.system [ls]", "!!python/name:os.system x", "!!int ''", "!!int x", "!!bool x",
        "!!float x", "!!timestamp x", "!!binary x", "!!null x", "!!str x", "!!map x", "!!seq {a: b}", "!!set {a, b}",
        "!!omap [a]", "!!pairs [1]", "!own x", "! x", "!<tag:example.org,2026:x> x"]
WRONG = ["2001-99-99", "2001-01-01T99:99:99", "0b_", "0x_", "=", "<<", "{<<: 3}", "{[a]: b}", "{{a: b}: c}", "*none",
         "[", "'", "\t- a", "%x", "@", "`", "&a"]


@pytest.mark.parametrize("text", [
    "a: 1\nb: 2\na: 3", "x: {a: 1, 'a': 1}", "x: [{y: 1, ? y : 2}]", "a: &a {k: 1, k: 2}\nb: {<<: *a}", "1: a\n1: b"])
def test_key_that_is_defined_twice_is_refused(text):
    """The first of two components with the same name would be removed silently."""
    with pytest.raises(Invalid, match=r"line \d+, column \d+: the key '.' is defined twice"):
        documents.parse(text, "yaml", "x")


def test_merged_keys_may_be_defined_again():
    text = """
x: {y: {z: &deep {<<: &other {k: 1, l: 1}, k: 2}}}
c: {<<: *deep, k: 4}
d: {<<: [*deep, *other]}
e: {<<: *other, <<: *deep, m: 3}
"""
    assert documents.parse(text, "yaml", "x") == {
        "x": {"y": {"z": {"k": 2, "l": 1}}}, "c": {"k": 4, "l": 1}, "d": {"k": 2, "l": 1},
        "e": {"k": 2, "l": 1, "m": 3}}


@pytest.mark.parametrize("name", COSTLY)
def test_costly_yaml_is_refused_with_its_position(name):
    text, said = COSTLY[name]
    with pytest.raises(Invalid, match=said) as raised:
        documents.parse(text, "yaml", "x")
    assert LOCATED.search(raised.value.message)
    print(f"{name}: {len(text)} characters: {raised.value}")


def test_yaml_parsing_stops_at_the_limit(monkeypatch):
    read = []
    events = yaml.parse

    def counted(*args, **more):
        for event in events(*args, **more):
            read.append(event)
            yield event

    monkeypatch.setattr(yaml, "parse", counted)
    for name, (text, _said) in COSTLY.items():
        with pytest.raises(Invalid):
            documents.parse(text, "yaml", "x")
        assert len(read) < 3 * documents._NODES, name
        read.clear()


@pytest.mark.parametrize("text", TAGS + WRONG)
@pytest.mark.parametrize("around", ["{}", "name: {}", "name: x\ncomponents:\n  a:\n    env: {}"])
def test_invalid_yaml_tags_and_values_are_errors_with_position(text, around):
    with pytest.raises(Invalid, match=r"platform: (not valid YAML: |.*Expected )") as told:
        parse(around.format(text), "yaml")
    if text in TAGS:
        assert LOCATED.search(told.value.message)
        assert "is not accepted: write the value without it" in told.value.message


def test_yaml_aliases_and_merges_of_reasonable_size_are_accepted():
    text = "a: &a {x: [1, 2], y: z}\nb: *a\nc: {<<: *a, y: own}\nd: [*a, *a]"
    one = {"x": [1, 2], "y": "z"}
    assert documents.parse(text, "yaml", "x") == {"a": one, "b": one, "c": {**one, "y": "own"}, "d": [one, one]}
    assert len(documents.parse(f"[{'x,' * (documents._NODES - 1)}]", "yaml", "x")) == documents._NODES - 1
    assert documents.parse(f'a: "{"1" * 200_000}"', "yaml", "x")["a"] == "1" * 200_000


_SCALARS = st.sampled_from([*TAGS, *WRONG, "x", "1", "1.5", "null", "yes", "2026-01-01", "''", "'${secret:x}'", "&b x",
                            "*b", '"\\0"', "/data", "registry/x", "-1", "99999999999999999999", ".nan"])
_KEYS = st.sampled_from([*platform.Component.__struct_fields__, *platform.Platform.__struct_fields__, "1", "null", "a",
                         "2026-01-01", "<<", "/etc/x", "container", "node", "destination", "source", "base", "[]"])
_VALUES = st.recursive(_SCALARS, lambda inner: st.one_of(
    st.lists(inner, max_size=4).map(lambda items: f"[{', '.join(items)}]"),
    st.lists(st.tuples(_KEYS, inner), max_size=4).map(
        lambda pairs: "{" + ", ".join(f"{key}: {value}" for key, value in pairs) + "}")), max_leaves=12)


@hypothesis.settings(max_examples=400, deadline=None, derandomize=True)
@hypothesis.given(st.sampled_from(["{}", "name: s\ncomponents: {}", "name: s\ncomponents: {{x: {}}}",
                                   "name: s\ncomponents: {{x: {{image: i, {}: {}}}}}", "{}: {}"]), _KEYS, _VALUES)
def test_arbitrary_yaml_yields_a_platform_or_a_user_error(around, key, value):
    words = (key, value) if around.count("{}") == 2 else (value,)
    with contextlib.suppress(Invalid):
        parse(around.format(*words), "yaml")


class Row(documents.Strict, frozen=True):
    number: int = 0


class Table(documents.Strict, frozen=True):
    rows: dict[Annotated[str, msgspec.Meta(pattern="^[a-z0-9]+$")], Row]


@pytest.mark.parametrize(("wrong", "said"), [
    ({"r700": {"number": "x"}, "r900": {"number": "y"}}, r"rows\.r700\.number: Expected `int`"),
    ({"r900": {"other": 1}, "r999": {"number": "y"}}, r"rows\.r900: .*unknown field `other`"),
    ({"R": {}, "S": {}}, r"rows: 'R' cannot be a name there")])
def test_first_wrong_entry_of_a_large_table_is_named(wrong, said):
    rows = {f"r{number}": {"number": number} for number in range(1000)} | wrong
    with pytest.raises(Invalid, match=rf"^file: {said}"):
        documents.convert({"rows": rows}, Table, "file")
