"""Implementations of an interface have the parameters of the interface."""

import inspect


def test_every_endpoint_takes_what_its_interface_says(suite):
    for declared, endpoint in suite.conductor.endpoints:
        for name, method in declared.methods().items():
            function = getattr(endpoint, name)
            # A derived method takes what its function does, behind the connection.
            signature = inspect.signature(getattr(function.__func__, "__wrapped__", function))
            try:
                signature.bind(None, **dict.fromkeys(method.parameters))
            except TypeError as error:
                raise AssertionError(f"{declared.__name__}.{name}: {error}") from error
