"""Parsing of parameters, and the declarations of actions compared with Amazon's model."""

from __future__ import annotations

import contextlib

import botocore.loaders
import botocore.model
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nova.ec2 import app, render
from nova.ec2.errors import Ec2Error
from nova.ec2.parameters import Address, Encoded, Identifier, Integer, Many, Struct, Text, flat, tree_of

MODEL = botocore.model.ServiceModel(botocore.loaders.Loader().load_service_model("ec2", "service-2"))
# The actions that the service supports, by the name in the request.
SUPPORTED = 51


def query_names(shape: botocore.model.StructureShape) -> dict[str, botocore.model.Shape]:
    """Return the members of an input by their names in requests."""
    names = {}
    for key, member in shape.members.items():
        name = member.serialization.get("queryName")
        if name is None:
            name = member.serialization.get("name", key)
            name = name[0].upper() + name[1:]
        names[name] = member
    return names


def undeclared(kind, shape, path):
    """Yield declared parameters that Amazon's model does not have, or has with another structure."""
    if isinstance(kind, Many):
        if shape.type_name != "list":
            yield path
        else:
            yield from undeclared(kind.inner, shape.member, f"{path}.N")
    elif isinstance(kind, Struct):
        if shape.type_name != "structure":
            yield path
            return
        names = query_names(shape)
        for name, inner in kind.fields.items():
            if name in names:
                yield from undeclared(inner, names[name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"
    elif shape.type_name in ("list", "structure"):
        yield path


@pytest.mark.parametrize("name", sorted(app.ACTIONS))
def test_parameters_of_an_action_are_those_of_amazon(name):
    shape = MODEL.operation_model(name).input_shape
    assert list(undeclared(app.ACTIONS[name].struct, shape, name)) == []


@pytest.mark.parametrize("name", sorted(app.ACTIONS))
def test_tokens_that_clients_add_to_requests_are_accepted(name):
    shape = MODEL.operation_model(name).input_shape
    added = {query for query, member in query_names(shape).items() if member.metadata.get("idempotencyToken")}
    assert added <= set(app.ACTIONS[name].struct.fields)


def test_every_classic_action_is_supported():
    assert len(app.ACTIONS) == SUPPORTED


NAMES = st.lists(st.sampled_from(["A", "B", "1", "2", "-1", "", "x"]), min_size=1, max_size=10).map(".".join)
KIND = Struct({"A": Many(Struct({"A": Text(), "B": Many(Integer())})), "B": Text(), "x": Struct({"1": Text()})})


@given(st.dictionaries(NAMES, st.text(max_size=5), max_size=8))
def test_every_request_is_parsed_or_refused(parameters):
    with contextlib.suppress(Ec2Error):
        assert set(KIND.read(tree_of(parameters))) == {"A", "B", "x"}


@given(st.binary(max_size=60))
def test_every_query_string_is_parsed_or_refused(data):
    with contextlib.suppress(Ec2Error):
        assert all(isinstance(value, str) for value in flat(data.decode("latin-1")).values())


def test_elements_of_a_list_are_ordered_by_number():
    tree = tree_of({"A.10": "c", "A.2": "b", "A.1": "a", "Version": "x"})
    assert Struct({"A": Many(Text())}).read(tree) == {"A": ["a", "b", "c"]}


@pytest.mark.parametrize(("kind", "value"), [
    (Integer(least=1), "0"), (Integer(), "1" * 16), (Integer(), "1.0"), (Integer(), "\u0661"), (Text(most=2), "abc"),
    (Text(choices=("a",)), "b"), (Encoded(), "!"), (Encoded(most=1), "QUFB"), (Text(), {"1": "x"}),
    (Identifier(("i",)), "i-"), (Address(), "10.0.0"),
    (Identifier(("i",)), "i_12345678"), (Identifier(("i",)), "i-" + "0" * 13),
    (Identifier(("i",)), "i-0000000A"), (Struct({}), "x"), (Many(Text(), most=1), {"1": "a", "2": "b"})])
def test_values_of_another_type_are_refused(kind, value):
    with pytest.raises(Ec2Error) as error:
        kind.read(value, "Name")
    assert error.value.code == "InvalidParameterValue"


def test_response_contains_only_characters_of_xml():
    answer = render.answer("X", "2016-11-15", "req-1", {
        "a": "\x00\ud800<&\ufffe", "b": [True, None, {"c": 1}], "d": []})
    assert answer.decode().partition("\n")[2] == (
        '<XResponse xmlns="http://ec2.amazonaws.com/doc/2016-11-15/"><requestId>req-1</requestId>'
        "<a>\ufffd\ufffd&lt;&amp;\ufffd</a><b><item>true</item><item><c>1</c></item></b><d></d></XResponse>")
