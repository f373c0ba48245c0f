"""Errors whose message is shown to the caller."""


class ReportedError(Exception):
    """An error with a message for the caller."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.message = message


class Invalid(ReportedError):
    """A file, an option or a request is invalid. The message names the field."""


class NotKnown(ReportedError):
    """The requested object does not exist."""


class Refused(ReportedError):
    """The request cannot be executed in the present state; nothing was changed."""


def os_error_text(error: OSError) -> str:
    """Return the message of a system error, with its file."""
    return f"{error.strerror or type(error).__name__}{f': {error.filename}' if error.filename else ''}"
