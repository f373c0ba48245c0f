"""Every error that Nova raises on purpose.

An error is a class with an HTTP status (``code``), a message template and named, JSON-able
arguments, so it travels over the bus by its class name and arguments and arrives as itself.
Only errors of this package may cross a service boundary; anything else becomes
:class:`InternalError` (the details stay in the log of the service that failed).

A module per subject; callers say ``exception.X`` of all of them.
"""
# ruff: noqa: F403

from nova.exception.base import *
from nova.exception.hosts import *
from nova.exception.networks import *
from nova.exception.requests import *
from nova.exception.resources import *
from nova.exception.servers import *
from nova.exception.shares import *
from nova.exception.volumes import *
