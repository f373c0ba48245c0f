"""One message of a log is one line, whatever users, images and hosts have put into it.

A name, a property or an error with a line break would else write lines of its own, which look like ours; other
controls would be done by the terminal of whoever reads them. (A traceback has many lines, each with its own prefix.)
"""

from __future__ import annotations

import logging


def one_line(text: str) -> str:
    """The same with what cannot be seen spelled out."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Record(logging.LogRecord):
    """For logging.setLogRecordFactory(): all handlers and formatters get it."""

    def getMessage(self) -> str:
        return one_line(super().getMessage())

    @property
    def error_summary(self) -> str:
        """What oslo.log puts behind the message when an exception is logged."""
        return str(self.__dict__.get("error_summary", ""))

    @error_summary.setter
    def error_summary(self, text: str) -> None:
        self.__dict__["error_summary"] = one_line(text)
