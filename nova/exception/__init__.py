"""The errors that Nova raises, as ``exception.NAME``.

An error is a class with an HTTP status (``code``), a message template and named arguments that JSON can represent.
Services send errors to each other by class name and arguments, and the receiver raises the same error. Other exceptions
are sent as :class:`InternalError`; their details are in the log of the service that raised them."""
# ruff: noqa: F403

from nova.exception.base import *
from nova.exception.networks import *
from nova.exception.resources import *
from nova.exception.servers import *
from nova.exception.volumes import *
