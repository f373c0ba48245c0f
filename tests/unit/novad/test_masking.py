"""Masking of secrets in the output of components, wherever the output is split or shown."""

import base64
import json
import sys
import urllib.parse

import pytest

from nova.novad.deployment import containers, history
from nova.novad.deployment.journal import Change
from nova.novad.errors import Failed, RuntimeFault
from nova.novad.secrets import MASK, MaskedStream, Masker
from tests.unit.novad.test_deploy import TEXT, Node

VALUE = "k3YsecretQ9x"
SHOWN = 3  # bytes of a piece that may be shown
CUTS = range(1, len(VALUE))


def longest(text: str, value: str = VALUE) -> int:
    """Return the length of the longest part of a secret in a text, ignoring line breaks and separators."""
    text = text.replace("\n", "").replace(" | ", "")
    return max((size for size in range(1, len(value) + 1) for start in range(len(value) - size + 1)
                if value[start:start + size] in text), default=0)


def lots(cut: int) -> dict[str, list[list[tuple[int, bytes]]]]:
    """Return logs that split the secret, as batches of (stream number, line)."""
    first, second = f"login with {VALUE[:cut]}".encode(), f"{VALUE[cut:]} failed".encode()
    out, other = (1, first), (2, b"0000 ====")
    return {"next line": [[out, (1, second)]], "next lot": [[out], [(1, second)]],
            "other stream between": [[out, other, (1, second)]],
            "between, and next lot": [[out], [other], [(1, second)]],
            "on both streams": [[out, (2, second)]], "on both, and next lot": [[other, out], [(2, second)]],
            "beginning of the log": [[(1, second)]], "end of the log": [[out]],
            "bytes": [[(1, bytes([byte]))] for byte in first + second],
            "bytes, and others between": [[(1, bytes([byte])), other] for byte in first + second],
            "empty lines between": [[out, (1, b""), (1, b"")], [(1, b"")], [(1, second)]]}


@pytest.mark.parametrize("how", lots(1))
@pytest.mark.parametrize("cut", CUTS)
def test_secret_split_at_any_position_is_masked(cut, how):
    stream = MaskedStream(Masker(["another secret", VALUE]))
    shown = [stream.lines(lot) for lot in lots(cut)[how]]
    whole = how in ("next line", "other stream between", "on both streams")
    assert longest("\n".join(line for lines in shown for line in lines)) <= (1 if whole else SHOWN)
    assert [len(lines) for lines in shown] == [len(lot) for lot in lots(cut)[how]]
    text = "\n".join(line for lines in shown for line in lines)
    assert "0000 ====" in text or (2, b"0000 ====") not in [line for lot in lots(cut)[how] for line in lot]
    if whole:
        assert ("login with ********" in text, "******** failed" in text) == (True, True)


@pytest.mark.parametrize("value", [
    VALUE, "p@ss/wörd \"quoted\" \\ 100%", "line one of it\nline two of it\n", "äöüßäöüßäöüß"])
def test_encoded_forms_of_a_secret_are_masked_at_every_split(value):
    masker = Masker([value])
    forms = {"plain": value, "URL": urllib.parse.quote(value, safe=""), "JSON": json.dumps(value)[1:-1],
             "JSON of UTF-8": json.dumps(value, ensure_ascii=False)[1:-1], "CRLF": value.replace("\n", "\r\n"),
             "first line": value.splitlines()[0]}
    forms |= {f"Base64 {user}": base64.b64encode(f"{user}:{value}".encode()).decode() for user in ("u", "us", "use")}
    forms["Base64 for URLs"] = base64.urlsafe_b64encode(value.encode()).decode()
    for how, form in forms.items():
        inner = form[4:-4] if "Base64" in how else form  # Its ends encode other characters, too.
        for at in range(len(form) + 1):
            shown = masker.text(f"before {form[:at]}\n{form[at:]} after")
            assert MASK in shown, how
            assert longest(shown.replace("\r", ""), inner.replace("\n", "").replace("\r", "")) <= SHOWN, (how, at)
            assert shown.startswith("before "), how
            assert shown.endswith(" after"), how
    print(", ".join(forms))


def test_secret_split_within_a_utf8_character_is_masked():
    value = "äöüßäöüß"
    for at in range(1, len(value.encode())):
        first, second = value.encode()[:at], value.encode()[at:]
        assert MaskedStream(Masker([value])).lines([(1, b"is " + first), (1, second + b" !")]) == [
            f"is {MASK}", f"{MASK} !"]


def steps_of(act) -> int:
    """Return the number of bytecode instructions that a call executes."""
    count = 0

    def trace(frame, event, _argument):
        nonlocal count
        frame.f_trace_opcodes = True
        count += event == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    finally:
        sys.settrace(before)
    return count


@pytest.mark.parametrize("lines", [lambda number: [(1, VALUE.encode())] * number,
                                   lambda number: [(1, VALUE[:6].encode()), (2, b""), (1, VALUE[6:].encode())] * number,
                                   lambda number: [(1, b""), (1, VALUE.encode() * 2)] * number])
def test_masking_work_grows_linearly_with_lines_that_contain_the_secret(lines):
    masker = Masker([VALUE])

    def work(number: int) -> int:
        return steps_of(lambda: MaskedStream(masker).lines(lines(number)))

    few, many = work(200), work(800)
    assert many < 5 * few, (few, many)


def test_overlapping_secrets_are_masked_as_a_single_span():
    assert Masker(["first half second", "second half third", "half"]).text(
        "is first half second half third.") == f"is {MASK}."


@pytest.mark.parametrize("cut", CUTS)
def test_secret_split_around_a_change_of_secrets_is_masked(cut):
    stream = MaskedStream(Masker([VALUE]))
    shown = stream.lines([(1, f"login with {VALUE[:cut]}".encode())])
    stream.use(Masker(["another secret", VALUE]))
    shown += stream.lines([(1, f"{VALUE[cut:]} and another se".encode())]) + stream.lines([(1, b"cret failed")])
    assert longest("".join(shown)) <= SHOWN
    assert longest("".join(shown), "another secret") <= SHOWN
    assert shown[-1].endswith(" failed")


def test_text_without_secrets_is_unchanged():
    text = "".join(chr(number) for number in range(1, 0x2100)) + "\n\r\nk3Y\nk3 \n\n"
    for values in ((), ("",), (VALUE, "")):
        assert Masker(values).text(text) == "".join(one if one.isprintable() or one == "\n" else "?" for one in text)
    assert MaskedStream(Masker([VALUE])).lines([(1, b"a\xff"), (2, b"")]) == ["a\ufffd", ""]
    assert Masker([VALUE]).text(VALUE * 3) == MASK


@pytest.fixture
def node(tmp_path, monkeypatch):
    monkeypatch.setattr(containers, "_POLL_INTERVAL", 0.01)
    made = Node(tmp_path)
    text = TEXT.replace("start = 0.5", "start = 0.01")
    made.start(text.replace("[components.conductor]", 'dump = ["fail"]\nrestore = ["fail"]\n[components.conductor]'))
    made.deploy()
    return made


def complaints(value: str):
    """Return texts whose last 300, 400 or 500 characters begin at each position of the secret."""
    return ["x" * 500 + value + "y" * (size - at) for size in (300, 400, 500) for at in range(len(value) + 1)]


@pytest.mark.parametrize("place", ["health", "last words", "dump", "restore", "runtime"])
def test_errors_of_a_failed_deployment_are_masked_before_truncation(node, place):
    value = node.deployer.secrets.values(["db"])["db"]
    seen = []
    for text in complaints(value):
        node.runtime.complaint = text[-400:] if place in ("dump", "restore") else text
        current = node.deployer.journal.components()
        change = Change(name="db", before=current["db"], after=current["db"])
        act = lambda: node.deploy(conductor="sick")  # noqa: E731
        if place == "last words":
            act = lambda: node.deploy(conductor="bad")  # noqa: E731
            half = 500 + len(seen) // 2 % len(value)
            node.runtime.said["suite-conductor"] = [(1, text[:half].encode()), (2, b"=="), (1, text[half:].encode())]
        elif place == "dump":
            act = lambda change=change: node.run(history.BACK_UP, [change])  # noqa: E731
        elif place == "runtime":
            def refuse(verb, name, text=text):
                if (verb, name) == ("start", "suite-conductor"):
                    node.runtime.before = lambda _verb, _name: None
                    raise RuntimeFault(text)
            node.runtime.before = refuse
            act = lambda: node.deploy(conductor="2")  # noqa: E731
        elif place == "restore":
            copy = node.directory / "backups" / "db" / "made"
            copy.mkdir(parents=True, exist_ok=True)
            (copy / ".dump").write_text("a dump")
            made = node.deployer.journal.add_backup("db", 1, current["db"], "backups/db/made", 6)
            act = lambda made=made: node.run(  # noqa: E731
                history.RESTORE, history.changes_restored(node.deployer.journal, made.id))
        with pytest.raises(Failed) as failed:
            act()
        seen += [failed.value.message, node.deployer.journal.deployments(1)[0].error]
        node.runtime.before = lambda _verb, _name: None
    assert max(longest(text, value) for text in seen) <= SHOWN
    assert any(MASK in text for text in seen)


def test_control_characters_of_components_are_replaced():
    for masker in (Masker([]), Masker(["a secret of mine"])):
        assert masker.text("\x1b]0;owned\x07 fine\r\nnext \x9b2J") == "?]0;owned? fine?\nnext ?2J"
    assert Masker(["a secret of mine"]).text("\x1b[1ma secret of mine") == f"?[1m{MASK}"
