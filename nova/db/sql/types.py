"""The metadata of all tables, and column types that behave the same on SQLite, PostgreSQL and MariaDB."""

import datetime
from collections.abc import Callable
from typing import Any, ClassVar

import msgspec
import sqlalchemy as sa


class _Type(sa.types.TypeDecorator[Any]):
    """A type for which MySQL and MariaDB use their own type ``mysql``, with these options."""

    mysql: ClassVar[str]
    mysql_options: ClassVar[dict[str, int]] = {}

    def load_dialect_impl(self, dialect: sa.Dialect) -> Any:
        if dialect.name not in ("mysql", "mariadb"):
            return super().load_dialect_impl(dialect)
        from sqlalchemy.dialects import mysql  # takes 1 MB, which is saved with other databases

        return dialect.type_descriptor(getattr(mysql, self.mysql)(**self.mysql_options))


class Json(_Type):
    """A value of a type that msgspec supports, stored as JSON text. Few queries search its content, as text."""

    impl = sa.Text
    cache_ok = True
    mysql = "LONGTEXT"

    def __init__(self, value_type: Any) -> None:
        super().__init__()
        self.value_type = value_type
        self._decode = msgspec.json.Decoder(value_type).decode

    @property
    def _static_cache_key(self) -> Any:
        return (type(self), repr(self.value_type))

    def process_bind_param(self, value: Any, dialect: sa.Dialect) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[str | None], Any]:
        # Used instead of process_result_value, which would be a further call for each value of a long list.
        decode = self._decode
        return lambda value: None if value is None else decode(value)


class Utc(_Type):
    """An aware UTC time with microseconds, stored without a time zone."""

    impl = sa.DateTime
    cache_ok = True
    mysql, mysql_options = "DATETIME", {"fsp": 6}

    def process_bind_param(self, value: datetime.datetime | None, dialect: sa.Dialect) -> datetime.datetime | None:
        if value is None:
            return None
        return value.astimezone(datetime.UTC).replace(tzinfo=None)

    def result_processor(self, dialect: sa.Dialect, coltype: object) -> Callable[[Any], datetime.datetime | None]:
        utc = datetime.UTC
        parse: Any = self.impl_instance.dialect_impl(dialect).result_processor(dialect, coltype)
        if parse is None:
            return lambda value: None if value is None else value.replace(tzinfo=utc)
        return lambda value: None if value is None else parse(value).replace(tzinfo=utc)  # SQLite stores text


def text(length: int = 255) -> Any:
    """Return the type of a short string; long strings (user data, keys) are LongText."""
    return sa.String(length)


class LongText(_Type):
    """A text of any length."""

    impl = sa.Text
    cache_ok = True
    mysql = "LONGTEXT"


class LongBytes(_Type):
    """Bytes, up to 4 GB."""

    impl = sa.LargeBinary
    cache_ok = True
    mysql = "LONGBLOB"


def big_id() -> Any:
    """Return the type of an autoincrement key (SQLite increments only plain INTEGER keys)."""
    return sa.BigInteger().with_variant(sa.Integer(), "sqlite")


metadata = sa.MetaData()


def table(name: str, *items: Any) -> sa.Table:
    """Return a table for statements. Only migrations set the options of MariaDB, which would load its dialect."""
    return sa.Table(name, metadata, *items)


def times() -> tuple[sa.Column[Any], sa.Column[Any]]:
    return sa.Column("created_at", Utc, nullable=False), sa.Column("updated_at", Utc)
