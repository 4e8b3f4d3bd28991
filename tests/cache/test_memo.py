"""The memo: durable JSON, shared among processes, deaf to planted rows."""

import pickle
import sqlite3
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kerntree.cache.digest import canonical, digest
from kerntree.cache.errors import CacheError
from kerntree.cache.memo import Memo, key_of

json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=6),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner),
    max_leaves=6,
)


@pytest.fixture
def memo(tmp_path):
    memo = Memo.open(tmp_path / "memo")
    yield memo
    memo.close()


def test_values_survive_reopening(memo):
    memo.put("a", {"verdict": "correct"}, parts={"config": 1})
    memo.put("big", "x" * 100_000)
    again = Memo.open(memo.directory)
    assert again.get("a") == {"verdict": "correct"}
    assert again.get("big") == "x" * 100_000
    assert again.get("absent") is None
    again.close()


def test_a_key_explains_what_differs(memo):
    first, second = {"config": {"B": 1}, "device": "x"}, {"config": {"B": 2}, "device": "x"}
    memo.put(key_of(first), 1, parts=first)
    memo.put(key_of(second), 2, parts=second)
    assert memo.explain(key_of(first), key_of(second)) == {"config": ({"B": 1}, {"B": 2})}
    with pytest.raises(CacheError, match="no entry"):
        memo.explain(key_of(first), "0" * 64)


def test_samples_accumulate_over_processes(memo):
    code = (
        "import sys; from pathlib import Path; from kerntree.cache.memo import Memo\n"
        "m = Memo.open(Path(sys.argv[1]))\n"
        "for i in range(20): m.append('s', [float(i)])\n"
    )
    processes = [
        subprocess.Popen([sys.executable, "-c", code, str(memo.directory)]) for _ in range(2)
    ]
    assert [process.wait(60) for process in processes] == [0, 0]
    assert sorted(memo.samples("s")) == sorted([float(i) for i in range(20)] * 2)


class Bomb:
    def __reduce__(self):
        return (sys.exit, ("unpickled",))


@pytest.mark.parametrize(
    "columns",
    [
        {"mode": 4, "value": sqlite3.Binary(pickle.dumps(Bomb()))},
        {"mode": 1, "value": sqlite3.Binary(pickle.dumps(Bomb()))},
        {"mode": 1, "value": 7},
        {"mode": 1, "value": "{not json"},
        {"mode": 1, "value": '{"verdict":"correct"}'},
    ],
)
def test_a_planted_value_is_refused(memo, columns):
    memo.put("k", 1)
    with sqlite3.connect(memo.directory / "cache.db") as database:
        database.execute("UPDATE Cache SET mode = :mode, value = :value", columns)
    with pytest.raises(CacheError):
        memo.get("k")


def test_a_planted_key_is_refused(memo):
    memo.put("k", 1)
    with sqlite3.connect(memo.directory / "cache.db") as database:
        database.execute(
            "UPDATE Cache SET raw = 0, key = ?", (sqlite3.Binary(pickle.dumps(Bomb())),)
        )
    with pytest.raises(CacheError):
        list(memo.keys())


def test_a_directory_that_cannot_be_used_is_named(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(CacheError, match="--cache"):
        Memo.open(tmp_path / "file" / "memo")


@given(value=json_values)
def test_digests_are_of_the_value_alone(value):
    import json

    assert digest(value) == digest(json.loads(json.dumps(value)))
    assert canonical({"a": value, "b": 1}) == canonical({"b": 1, "a": value})


@given(first=json_values, second=json_values)
def test_different_values_have_different_digests(first, second):
    assert (digest(first) == digest(second)) == (canonical(first) == canonical(second))


def test_what_is_not_json_never_enters_a_key():
    with pytest.raises(TypeError):
        digest({"path": object()})
    with pytest.raises(TypeError):
        digest({1: 2})
    assert digest(float("nan")) != digest(float("inf"))
