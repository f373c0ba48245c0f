"""What a server knows of callers that are not there."""

import pytest

from nova.bus import answers


@pytest.fixture
def clock(monkeypatch):
    class Clock:
        now = 1000.0

        def monotonic(self):
            return self.now

    made = Clock()
    monkeypatch.setattr(answers, "time", made)
    return made


def test_a_queue_is_missing_since_it_was_missed_first(clock):
    missing = answers.Missing()
    assert missing.seconds("q") == 0
    clock.now += 7
    assert missing.seconds("other") == 0
    assert missing.seconds("q") == 7


def test_a_queue_that_was_found_is_missing_no_more(clock):
    missing = answers.Missing()
    missing.seconds("q")
    clock.now += 7
    missing.found("q")
    missing.found("q")
    assert missing.seconds("q") == 0


def test_what_was_missing_long_ago_is_forgotten(clock):
    missing = answers.Missing()
    missing.seconds("q")
    clock.now += 30
    missing.seconds("later")
    clock.now += 31
    assert missing.seconds("q") == 0
    assert missing.seconds("later") == 31
