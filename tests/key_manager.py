"""A key manager for tests ([key_manager]backend tests.key_manager.Keys) that records the requests for keys."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any, ClassVar, NoReturn

from castellan.common.exception import KeyManagerError, ManagedObjectNotFoundError
from castellan.common.objects.symmetric_key import SymmetricKey
from castellan.key_manager.key_manager import KeyManager


class _Answered(Exception):
    """A response of the client of a real key manager."""

    def __init__(self, status_code: int) -> None:
        super().__init__(f"status {status_code}")
        self.status_code = status_code


class Keys(KeyManager):
    """The fake key manager. ``kept``: (project, bytes) by id; ``asked``: (token, id) of each request.

    ``failures``: functions that raise the errors of the next requests.
    """

    kept: ClassVar[dict[str, tuple[str, bytes]]] = {}
    asked: ClassVar[list[tuple[str, str]]] = []
    failures: ClassVar[list[Callable[[], NoReturn]]] = []

    def __init__(self, configuration: Any) -> None:
        """Ignore the configuration."""

    @classmethod
    def new(cls, project: str, value: bytes = b"") -> str:
        ident = str(uuid.uuid4())
        cls.kept[ident] = project, value or uuid.uuid4().bytes + uuid.uuid4().bytes
        return ident

    @classmethod
    def clear(cls) -> None:
        for each in (cls.kept, cls.asked, cls.failures):
            each.clear()

    def get(self, context: Any, managed_object_id: str, metadata_only: bool = False) -> SymmetricKey:
        self.asked.append((context.auth_token, managed_object_id))
        if self.failures:
            self.failures.pop(0)()
        project, value = self.kept.get(managed_object_id, (None, b""))
        if project is None:
            raise ManagedObjectNotFoundError(uuid=managed_object_id)
        if context.project_id != project:
            answers(403)()
        return SymmetricKey("AES", len(value) * 8, value)

    def _nothing_else(self, *_args: Any, **_more: Any) -> NoReturn:
        raise NotImplementedError

    create_key = create_key_pair = store = delete = add_consumer = remove_consumer = _nothing_else


def answers(status_code: int) -> Callable[[], NoReturn]:
    """Return a function that responds as castellan does."""
    def fail() -> NoReturn:
        try:
            raise _Answered(status_code)
        except _Answered as error:
            raise KeyManagerError(reason=error)  # noqa: B904

    return fail


def is_silent() -> NoReturn:
    raise TimeoutError("no answer in time")
