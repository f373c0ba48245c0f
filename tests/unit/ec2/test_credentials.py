"""Responses of Keystone to requests to check a signature."""

import types

import pytest

from nova.context import RequestContext
from nova.ec2 import credentials
from nova.ec2.errors import Ec2Error


@pytest.mark.parametrize(("status", "code"), [
    (401, "AuthFailure"), (404, "AuthFailure"), (403, "Unavailable"), (429, "Unavailable"), (503, "Unavailable")])
def test_only_wrong_credentials_are_the_fault_of_the_caller(status, code):
    keystone = types.SimpleNamespace(request=lambda *_args, **_more: types.SimpleNamespace(status_code=status))
    with pytest.raises(Ec2Error) as refused:
        credentials._validate(keystone, RequestContext(overwrite=False), {"access": "a"})
    assert refused.value.code == code
