"""Log records whose message is a single line, even if it contains text from users, images and hosts. A line break in a
name, a property or an error would otherwise start a line that looks like a message of Nova, and a terminal would
execute other control characters. Tracebacks keep their lines, each with the prefix of the record."""

import logging


def escape(text: str) -> str:
    """Return the text with line breaks and other unprintable characters as escape sequences."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else ascii(char)[1:-1] for char in text)


class Record(logging.LogRecord):
    """A log record with a one-line message, for logging.setLogRecordFactory()."""

    def getMessage(self) -> str:
        return escape(super().getMessage())

    @property
    def error_summary(self) -> str:
        """Return the text that oslo.log appends to the message when an exception is logged."""
        return str(self.__dict__.get("error_summary", ""))

    @error_summary.setter
    def error_summary(self, text: str) -> None:
        self.__dict__["error_summary"] = escape(text)
