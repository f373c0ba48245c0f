"""Parsers of query strings. Errors name the parameter. Parsing time is proportional to the length of the query."""

import re
from collections.abc import Collection, Mapping
from urllib.parse import parse_qsl

from nova import exception
from nova.objects.hosts.placement import AnyOf, CandidateRequest, ProviderFilter, RequestedGroup, Resources
from nova.placement import errors
from nova.placement.bodies import LARGEST, uuid_of

Values = dict[str, list[str]]

_MOST_PARAMETERS = 500
_MOST_ITEMS = 200  # maximum number of names in a parameter
_MOST_GROUPS = 32
_MOST_CANDIDATES = 1000
_SHOWN = 100  # maximum number of characters of a value in an error

_RESOURCE = re.compile(r"([A-Z0-9_]{1,255}):([0-9]{1,10})", re.ASCII)
_TRAIT = re.compile(r"[A-Z0-9_]{1,255}", re.ASCII)
_GROUPED = re.compile(r"(resources|required|member_of|in_tree)(.*)", re.DOTALL)
_NUMBER = re.compile(r"[1-9][0-9]{0,63}", re.ASCII)
_SUFFIX = re.compile(r"[a-zA-Z0-9_-]{1,64}", re.ASCII)


def parameters(query: str, allowed: Collection[str] | None, repeated: tuple[str, ...] = ()) -> Values:
    """Return parameter -> values. ``allowed``: allowed parameters (None: all). ``repeated``: prefixes of parameters
    that may occur several times. Raises Invalid."""
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=_MOST_PARAMETERS, errors="strict")
    except ValueError:
        raise errors.BadValue(f"The query is not UTF-8 or has more than {_MOST_PARAMETERS} parameters.") from None
    values: Values = {}
    for name, value in pairs:
        if allowed is not None and name not in allowed:
            raise errors.BadValue(f"Invalid query string parameters: {name[:_SHOWN]!a} is not supported here.")
        if name in values and not name.startswith(repeated):
            raise errors.DuplicateKey(f"Invalid query string parameters: {name[:_SHOWN]!a} occurs more than once.")
        if "\0" in value:
            raise errors.BadValue(f"Invalid query string parameters: {name[:_SHOWN]!a} contains a NUL character.")
        values.setdefault(name, []).append(value)
    return values


def bad_value(name: str, value: str, expected: str) -> exception.Invalid:
    return errors.BadValue(f"Invalid query string parameters: {name}: expected {expected}, got {value[:_SHOWN]!a}.")


def uuid(name: str, value: str) -> str:
    """Return a UUID in canonical form. Raises Invalid."""
    canonical = uuid_of(value)
    if canonical is None:
        raise bad_value(name, value, "a UUID")
    return canonical


def _items(name: str, value: str) -> list[str]:
    items = [item.strip() for item in value.split(",", _MOST_ITEMS)]
    if len(items) > _MOST_ITEMS:
        raise errors.BadValue(f"Invalid query string parameters: {name} has more than {_MOST_ITEMS} items.")
    return items


def resources(name: str, value: str) -> Resources:
    """Parse VCPU:2,MEMORY_MB:1024. Raises Invalid."""
    amounts: Resources = {}
    for item in _items(name, value):
        match = _RESOURCE.fullmatch(item)
        if match is None or not 1 <= int(match[2]) <= LARGEST:
            raise bad_value(name, value, "amounts of resource classes such as VCPU:2,MEMORY_MB:1024")
        if match[1] in amounts:
            raise bad_value(name, value, "each resource class once")
        amounts[match[1]] = int(match[2])
    return amounts


def traits(name: str, values: Collection[str], version: int) -> tuple[AnyOf, list[str]]:
    """Parse HW_A,!HW_B (forbidden from 1.22) and in:HW_A,HW_C (any of them, from 1.39). Return the required and the
    forbidden traits. Raises Invalid."""
    required: AnyOf = []
    forbidden: list[str] = []
    for value in values:
        any_of = version >= 39 and value.startswith("in:")
        expected = "traits such as HW_CPU_X86_AVX" + (", !CUSTOM_A" if version >= 22 else "") + (
            " or in:HW_A,HW_B" if version >= 39 else "")
        items = _items(name, value[3:] if any_of else value)
        for item in items:
            forbids = version >= 22 and not any_of and item.startswith("!")
            if _TRAIT.fullmatch(item[1:] if forbids else item) is None:
                raise bad_value(name, value, expected)
            if forbids:
                forbidden.append(item[1:])
            elif not any_of:
                required.append([item])
        if any_of:
            required.append(items)
    both = {trait for options in required if len(options) == 1 for trait in options}.intersection(forbidden)
    if both:
        raise errors.BadValue(f"Invalid query string parameters: {name}: {', '.join(sorted(both))} is both required "
                              f"and forbidden.")
    return required, forbidden


def aggregates(name: str, values: Collection[str], version: int) -> tuple[AnyOf, list[str]]:
    """Parse UUID, in:UUID,UUID and, from 1.32, !UUID and !in:UUID,UUID. Return the aggregates of which a provider must
    be a member, and those of which it must not be a member. Raises Invalid."""
    member_of: AnyOf = []
    not_member_of: list[str] = []
    for value in values:
        forbids = version >= 32 and value.startswith("!")
        rest = value[1:] if forbids else value
        uuids = _items(name, rest[3:]) if rest.startswith("in:") else [rest]
        canonical = [uuid(name, item) for item in uuids]
        if forbids:
            not_member_of += canonical
        else:
            member_of.append(canonical)
    return member_of, not_member_of


def provider_filter(query: str, version: int) -> ProviderFilter:
    """Parse the query string of GET /resource_providers. Raises Invalid."""
    since = {"name": 0, "uuid": 0, "member_of": 3, "resources": 4, "in_tree": 14, "required": 18}
    values = parameters(query, {name for name, first in since.items() if version >= first}, _repeated(version))
    wanted = ProviderFilter(name=values.get("name", [None])[0])
    for name in ("uuid", "in_tree"):
        if name in values:
            setattr(wanted, name, uuid(name, values[name][0]))
    if "resources" in values:
        wanted.resources = resources("resources", values["resources"][0])
    wanted.required, wanted.forbidden = traits("required", values.get("required", ()), version)
    wanted.member_of, wanted.not_member_of = aggregates("member_of", values.get("member_of", ()), version)
    return wanted


# --- allocation candidates -----------------------------------------------------------------------
_SINCE_GROUPED = {"resources": 10, "required": 17, "member_of": 21, "in_tree": 31}
_SINCE_PLAIN = {"limit": 16, "group_policy": 25, "root_required": 35, "same_subtree": 36}
_GRANULAR, _TEXT_SUFFIXES, _SUBTREES = 25, 33, 36


def candidate_request(query: str, version: int) -> CandidateRequest:
    """Parse the query string of GET /allocation_candidates. Raises Invalid."""
    values = parameters(query, None, _repeated(version))
    request = CandidateRequest(groups=[], limit=_MOST_CANDIDATES, nested=version >= 29)
    groups: dict[str, RequestedGroup] = {}
    for name, given in values.items():
        if name in _SINCE_PLAIN and version >= _SINCE_PLAIN[name]:
            continue
        kind, suffix = _grouped(name, version)
        group = groups.setdefault(suffix, RequestedGroup(suffix=suffix))
        if kind == "resources":
            group.resources = resources(name, given[0])
        elif kind == "required":
            group.required, group.forbidden = traits(name, given, version)
        elif kind == "member_of":
            group.member_of, group.not_member_of = aggregates(name, given, version)
        else:
            group.in_tree = uuid(name, given[0])
    request.groups = list(groups.values())
    _plain(request, values, version)
    _check_groups(request, groups, version, "group_policy" in values)
    return request


def _repeated(version: int) -> tuple[str, ...]:
    """Return the parameters that may occur several times in this version, each with any suffix."""
    since = {"member_of": 24, "same_subtree": 36, "required": 39}
    return tuple(name for name, first in since.items() if version >= first)


def _grouped(name: str, version: int) -> tuple[str, str]:
    """Return kind and suffix of a parameter. Raises Invalid if the version has no such parameter."""
    match = _GROUPED.fullmatch(name)
    if match is not None and version >= _SINCE_GROUPED[match[1]]:
        pattern = _SUFFIX if version >= _TEXT_SUFFIXES else _NUMBER
        if not match[2] or (version >= _GRANULAR and pattern.fullmatch(match[2]) is not None):
            return match[1], match[2]
    raise errors.BadValue(f"Invalid query string parameters: {name[:_SHOWN]!a} is not supported here.")


def _plain(request: CandidateRequest, values: Values, version: int) -> None:
    if "limit" in values:
        limit = values["limit"][0]
        if re.fullmatch(r"[1-9][0-9]{0,18}", limit, re.ASCII) is None:
            raise bad_value("limit", limit, "a positive number")
        request.limit = min(int(limit), _MOST_CANDIDATES)
    if "group_policy" in values:
        policy = values["group_policy"][0]
        if policy not in ("none", "isolate"):
            raise bad_value("group_policy", policy, "none or isolate")
        request.isolate = policy == "isolate"
    if "root_required" in values:
        required, request.root_forbidden = traits("root_required", values["root_required"], min(version, 38))
        request.root_required = [trait for options in required for trait in options]
    request.same_subtree = [_items("same_subtree", value) for value in values.get("same_subtree", ())]


def _check_groups(request: CandidateRequest, groups: Mapping[str, RequestedGroup], version: int, policy: bool) -> None:
    if len(groups) > _MOST_GROUPS:
        raise errors.BadValue(f"Invalid query string parameters: more than {_MOST_GROUPS} groups of resources.")
    if not any(group.resources for group in groups.values()):
        raise errors.MissingValue(
            "There must be at least one resources or resources[$S] parameter." if version >= _GRANULAR
            else "Invalid query string parameters: resources is required.")
    in_subtrees = {suffix for suffixes in request.same_subtree for suffix in suffixes}
    unknown = sorted(in_subtrees - (groups.keys() - {""}))
    if unknown:
        raise errors.BadValue(f"Invalid query string parameters: same_subtree: no group has the suffix "
                              f"{unknown[0][:_SHOWN]!a}.")
    for suffix, group in groups.items():
        if not group.resources and not (version >= _SUBTREES and suffix in in_subtrees):
            raise errors.BadValue(f"Invalid query string parameters: there is no resources{suffix} for the other "
                                  f"parameters with the suffix {suffix!a}.")
    if not policy and sum(1 for suffix, group in groups.items() if suffix and group.resources) > 1:
        raise errors.MissingValue('The "group_policy" parameter is required when specifying more than one '
                                  '"resources{N}" parameter.')
