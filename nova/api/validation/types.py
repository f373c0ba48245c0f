"""Types of fields that many resources use."""

from nova.api.validation.fields import Array, Changing, Field, Name, Object, Plain, Query, string

TRUE_VALUES = [True, "True", "TRUE", "true", "1", "ON", "On", "on", "YES", "Yes", "yes"]
_FALSE_VALUES = [False, "False", "FALSE", "false", "0", "OFF", "Off", "off", "NO", "No", "no"]

ANY = Plain()
STRING = string()
STRING_OR_NULL = Plain(type=["string", "null"])
INTEGER = Plain(type="integer")
INTEGER_OR_NULL = Plain(type=["integer", "null"])
NUMBER = Plain(type="number")
TRUTH = Plain(type="boolean")
BOOLEAN = Plain(type=["boolean", "string"], enum=TRUE_VALUES + _FALSE_VALUES)
UUID = string(format="uuid")
TIME = string(format="date-time")
TIME_OR_NULL = Plain(type=["string", "null"], format="date-time")
REGEX = string(format="regex")
IP = Plain(type="string", oneOf=[{"format": "ipv4"}, {"format": "ipv6"}])
TEXT = string(minLength=1, maxLength=255)
# Names that may have surrounding spaces, and names that may not; NAME allows the spaces only in /v2.
NAME_SPACES = Name(type="string", format="name_with_leading_trailing_spaces", minLength=1, maxLength=255)
STRICT_NAME = string(format="name", minLength=1, maxLength=255)
NAME = Changing({0: NAME_SPACES, 1: STRICT_NAME})
HOSTNAME = string(pattern="^[a-zA-Z0-9-._]*$", minLength=1, maxLength=255)
DESCRIPTION = Plain(type=["string", "null"], format="printable", minLength=0, maxLength=255)
TAG = string(pattern="^[^,/]*$", minLength=1, maxLength=60)
OPEN = Object(additional=True)
_METADATA_ITEMS = {"^[a-zA-Z0-9-_:. ]{1,255}$": string(maxLength=255)}
METADATA = Object(patterns=_METADATA_ITEMS)
# Requests and answers with all metadata of a resource, and with a single item.
ALL_METADATA = Object({"metadata": Field(METADATA, required=True)})
METADATA_ITEM = Object({"meta": Field(
    Object(patterns=_METADATA_ITEMS, minProperties=1, maxProperties=1), required=True)})
ALL_METADATA_ANSWER = Object({"metadata": OPEN})
METADATA_ITEM_ANSWER = Object({"meta": OPEN})
# An integer or, as in queries, a text.
LIMIT = Plain(type=["integer", "string"], pattern="^[0-9]*$", minimum=0, minLength=1)
LINKS = Array(Object({"rel": STRING, "href": STRING}, additional=True))

# Queries without and with paging by offset, whose unknown parameters are ignored in every version.
ANY_QUERY = Query(strict=None)
OFFSET_QUERY = Query({"limit": LIMIT, "offset": LIMIT}, strict=None)
