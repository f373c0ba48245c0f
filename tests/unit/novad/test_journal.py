"""Tests of the journal of deployments."""

import sqlite3
import subprocess
import sys
import threading

import pytest

from nova.novad.deployment.journal import DONE, RUNNING, STUCK, UNDONE, Change, Deployed, Journal, JournalFault
from nova.novad.platform import Component

ONE = Deployed(name="db", component=Component(image="i", version="1"), image="abc", deployment=1)


def test_journal_is_persistent_across_reopening(tmp_path):
    journal = Journal(tmp_path / "j")
    first = journal.begin("deploy", "fetch", [Change(name="db")])
    journal.advance(first.id, "apply", [Change(name="db", after=ONE)])
    journal.finish(first.id, DONE, [Change(name="db", after=ONE)])
    backup = journal.add_backup("db", first.id, ONE, "backups/db/1", 7)
    second = journal.begin("remove", "fetch", [Change(name="db", before=ONE)])
    journal.set_fact("platform", "suite")
    journal.close()
    again = Journal(tmp_path / "j")
    assert again.components() == {"db": ONE}
    assert [one.id for one in again.unfinished()] == [second.id]
    assert (again.deployment(first.id).changes, again.deployment(99)) == ([Change(name="db", after=ONE)], None)
    assert (again.backups(), again.backups("other"), again.fact("platform")) == ([backup], [], "suite")
    again.finish(second.id, DONE, [Change(name="db", before=ONE)])
    assert (again.components(), again.unfinished()) == ({}, [])
    assert (tmp_path / "j").stat().st_mode & 0o777 == 0o600


def test_stuck_deployments_are_unfinished_and_undone_deployments_finished(tmp_path):
    journal = Journal(tmp_path / "j")
    states = {state: journal.begin("deploy", "fetch", []).id for state in (RUNNING, STUCK, UNDONE, DONE)}
    for state, ident in states.items():
        journal.finish(ident, state, [])
    assert {one.state for one in journal.unfinished()} == {RUNNING, STUCK}


def test_dropped_backup_stays_recorded_without_path(tmp_path):
    journal = Journal(tmp_path / "j")
    backup = journal.add_backup("db", 1, ONE, "backups/db/1", 7)
    for _time in range(2):
        journal.drop_backup(backup.id, "backup")
    assert journal.backups() == []
    task, = journal.cleanup_tasks()
    assert (task.kind, task.name) == ("backup", "backups/db/1")
    journal.cleanup_done(task.id)
    assert journal.cleanup_tasks() == []
    assert [(one.id, one.path) for one in journal.backups("db", dropped=True)] == [(backup.id, "")]


@pytest.mark.parametrize("content", [b"no database at all, but long enough to be looked at" * 40, None])
def test_damaged_journal_raises_journal_fault(tmp_path, content):
    journal = Journal(tmp_path / "j")
    for _number in range(200):
        journal.begin("deploy", "fetch", [Change(name="db", after=ONE)])
    journal.close()
    whole = (tmp_path / "j").read_bytes()
    (tmp_path / "j").write_bytes(content or whole[:8192] + b"\xff" * 8192 + whole[16384:])
    with pytest.raises(JournalFault, match=r"is damaged .* move the file away"):
        Journal(tmp_path / "j")


def test_journal_that_cannot_be_opened_is_not_reported_as_damaged(tmp_path):
    (tmp_path / "j").mkdir()
    with pytest.raises(JournalFault, match=r"cannot be opened: unable to open database file$"):
        Journal(tmp_path / "j")


def test_undecodable_rows_raise_journal_fault(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.finish(journal.begin("deploy", "fetch", []).id, DONE, [Change(name="db", after=ONE)])
    with sqlite3.connect(tmp_path / "j") as other:
        other.execute("update components set deployed = '{'")
        other.execute("update deployments set changes = '7'")
    with pytest.raises(JournalFault, match="damaged: components"):
        journal.components()
    with pytest.raises(JournalFault, match="damaged: Deployment 1"):
        journal.deployments()


def test_use_of_a_closed_journal_raises_journal_fault(tmp_path):
    """A change may record its result while novad shuts down; SQLite crashes on use of a closed connection."""
    journal = Journal(tmp_path / "j")
    faults = []

    def use():
        try:
            while True:
                journal.components()
        except JournalFault as fault:
            faults.append(fault.message)
    threads = [threading.Thread(target=use) for _number in range(4)]
    for thread in threads:
        thread.start()
    journal.close()
    for thread in threads:
        thread.join()
    assert len(faults) == 4
    assert all("novad is stopping" in fault for fault in faults)


def test_concurrent_first_reads_do_not_crash(tmp_path):
    """msgspec crashes if two threads decode a type for the first time."""
    journal = Journal(tmp_path / "journal.sqlite")
    begun = journal.begin("deploy", "fetch", [Change(name="db", after=ONE)])
    journal.finish(begun.id, DONE, [Change(name="db", after=ONE)])
    code = f"""
import sys, threading
from nova.novad.daemon import Daemon
from nova.novad.options import Options
journal = Daemon(Options(data_dir={str(tmp_path)!r}), None, None).journal
sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
def read(one):
    barrier.wait()
    one()
threads = [threading.Thread(target=read, args=(one,)) for one in [journal.deployments, journal.components] * 4]
for thread in threads: thread.start()
for thread in threads: thread.join()
"""
    for _time in range(3):
        assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_backup_with_a_value_of_another_type_raises_journal_fault(tmp_path):
    journal = Journal(tmp_path / "j")
    journal.add_backup("db", 1, ONE, "backups/db/1", 5)
    with sqlite3.connect(tmp_path / "j") as other:
        other.execute("update backups set size = 'many'")
    with pytest.raises(JournalFault, match="damaged: Backup"):
        journal.backups()
