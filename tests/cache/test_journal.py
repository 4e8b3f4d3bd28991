"""The journal keeps what was written, forgets a torn end, and names damage."""

import json
import resource
import signal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerntree.cache.errors import CacheError
from kerntree.cache.journal import Journal, read_events

events = st.lists(
    st.tuples(
        st.text(min_size=1, max_size=8),
        st.dictionaries(st.text(max_size=5), st.integers() | st.text(max_size=9), max_size=3),
    ),
    min_size=1,
    max_size=6,
)


def write(path, entries):
    journal = Journal.open(path, clock=lambda: 1.5)
    for kind, data in entries:
        journal.append(kind, data)
    journal.close()
    return path.read_bytes()


@given(entries=events)
def test_what_was_appended_is_read_back(tmp_path_factory, entries):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    write(path, entries)
    read = read_events(path)
    assert [(event.kind, event.data) for event in read] == entries
    assert [event.sequence for event in read] == list(range(len(entries)))


@given(entries=events, data=st.data())
def test_any_cut_leaves_a_prefix_that_can_be_continued(tmp_path_factory, entries, data):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    content = write(path, entries)
    cut = data.draw(st.integers(0, len(content)))
    path.write_bytes(content[:cut])
    journal = Journal.open(path)
    kept = content[:cut].count(b"\n")
    assert [(event.kind, event.data) for event in journal.events] == entries[:kept]
    assert journal.dropped == cut - len(b"".join(content.splitlines(keepends=True)[:kept]))
    journal.append("more", {})
    journal.close()
    assert [event.kind for event in read_events(path)] == [k for k, _ in entries[:kept]] + ["more"]


@given(entries=events, data=st.data())
def test_a_flipped_byte_before_the_last_line_is_named(tmp_path_factory, entries, data):
    path = tmp_path_factory.mktemp("journal") / "journal.jsonl"
    content = bytearray(write(path, [*entries, ("last", {})]))
    lines = bytes(content).splitlines(keepends=True)
    target = data.draw(st.integers(0, sum(map(len, lines[:-1])) - 1))
    content[target] ^= data.draw(st.integers(1, 255))
    path.write_bytes(content)
    line = bytes(content)[:target].count(b"\n") + 1
    with pytest.raises(CacheError, match=f"line {line}: damaged"):
        read_events(path)


def test_a_last_line_with_a_hole_is_torn_and_one_with_a_wrong_byte_is_damaged(tmp_path):
    path = tmp_path / "journal.jsonl"
    content = write(path, [("first", {}), ("second", {"text": "x" * 100})])
    path.write_bytes(content[:-80] + b"\0" * 79 + b"\n")
    assert [event.kind for event in read_events(path)] == ["first"]
    path.write_bytes(content[:-20] + b"?" + content[-19:])
    with pytest.raises(CacheError, match="line 2: damaged"):
        read_events(path)


def test_lines_are_json_a_person_can_read(tmp_path):
    write(tmp_path / "journal.jsonl", [("evaluated", {"reward": 1.25})])
    line = json.loads((tmp_path / "journal.jsonl").read_text())
    assert (line["kind"], line["data"], line["sequence"]) == ("evaluated", {"reward": 1.25}, 0)


def test_a_full_disk_is_reported_and_nothing_is_torn(tmp_path):
    path = tmp_path / "journal.jsonl"
    journal = Journal.open(path)
    journal.append("first", {})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (path.stat().st_size + 40, limits[1]))
    try:
        with pytest.raises(CacheError, match="free some space"):
            journal.append("second", {"text": "x" * 200})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        signal.signal(signal.SIGXFSZ, handler)
    journal.append("third", {})
    journal.close()
    assert [event.kind for event in read_events(path)] == ["first", "third"]
