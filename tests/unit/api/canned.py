"""Fake services behind the API that follow the declared interface.

Arguments and results are encoded with the types of the bus, so a handler that passes arguments
which the real service would refuse fails here too.
"""

from nova.bus import Interface


class Canned:
    """A fake interface with canned results: a value, a function of the arguments, or an error to raise.

    ``calls`` is the list of (method, arguments) in call order.
    """

    def __init__(self, declared: type[Interface], **answers):
        unknown = set(answers) - set(declared.methods())
        assert not unknown, f"{declared.__name__} has no {unknown}"
        self._declared = declared
        self.answers = answers
        self.calls = []

    def __getattr__(self, name):
        method = self._declared.methods().get(name)
        if method is None:
            raise AttributeError(name)

        def call(ctx, *args, **kwargs):
            kwargs.update(zip(method.parameters, args, strict=False))
            sent = method.decode_args(method.encode(method.args_type(**kwargs)))
            given = {parameter: getattr(sent, parameter) for parameter in method.parameters}
            self.calls.append((name, given))
            answer = self.answers.get(name)
            if isinstance(answer, Exception):
                raise answer
            if callable(answer):
                answer = answer(**given)
            return method.decode_result(method.encode(answer))

        return call

    def last(self, name):
        """Return the arguments of the last call of a method."""
        return [given for called, given in self.calls if called == name][-1]


def stub(api, name, declared, **answers):
    """Install a fake interface with canned results behind the API, and return it."""
    made = Canned(declared, **answers)
    setattr(api.behind, name, made)
    return made
