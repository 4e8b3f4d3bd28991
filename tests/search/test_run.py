"""Run directories: created whole, opened by name, driven by one process, durations read."""

from datetime import datetime

import pytest

from kerntree.plans.errors import SettingsError
from kerntree.search.errors import RunError
from kerntree.search.run import RunDirectory, RunSettings, new_path, seconds_of
from kerntree.search.views.terminal import clean


@pytest.fixture
def run(tmp_path):
    problem = tmp_path / "op.py"
    problem.write_text("x = 1\n")
    settings = RunSettings(problem=str(problem), memo=str(tmp_path / "memo"), seconds=60.0)
    return RunDirectory.create(tmp_path / "run", settings, environment={"python": "3"})


def test_settings_are_frozen_in_the_run(run):
    assert RunDirectory.open(run.path).settings == run.settings


def test_a_run_is_driven_by_one_process_at_a_time(run):
    with run, pytest.raises(RunError, match="being searched"):
        RunDirectory.open(run.path).__enter__()
    with RunDirectory.open(run.path):
        pass


def test_a_problem_that_changed_is_noticed(run, tmp_path):
    assert run.check_problem() == tmp_path / "op.py"
    (tmp_path / "op.py").write_text("x = 2\n")
    with pytest.raises(RunError, match="changed"):
        run.check_problem()
    (tmp_path / "op.py").unlink()
    with pytest.raises(RunError, match="gone"):
        run.check_problem()


@pytest.mark.parametrize("text", ["", "run = [", "[settings]\nproblem = 3\n"])
def test_a_damaged_run_is_named(run, text):
    (run.path / "run.toml").write_text(text)
    with pytest.raises(RunError, match=r"run\.toml"):
        RunDirectory.open(run.path)


def test_best_is_replaced_whole(run):
    run.write_best("a = 1\n")
    run.write_best("a = 2\n")
    assert (run.path / "best.py").read_text() == "a = 2\n"
    assert not [path for path in run.path.iterdir() if path.name.startswith(".")]


def test_names_of_runs_do_not_collide(tmp_path):
    now = datetime(2026, 1, 2, 3, 4, 5)
    first = new_path(tmp_path / "my op.py", root=tmp_path, now=now)
    first.mkdir()
    second = new_path(tmp_path / "my op.py", root=tmp_path, now=now)
    assert (first.name, second.name) == ("my-op-20260102-030405", "my-op-20260102-030405-2")


@pytest.mark.parametrize(
    ("text", "seconds"), [("90s", 90), ("10m", 600), ("8h", 28800), ("90", 90), ("1.5m", 90)]
)
def test_durations(text, seconds):
    assert seconds_of(text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5s", "0", "10 minutes", "1e3"])
def test_other_durations_are_refused(text):
    with pytest.raises(SettingsError, match="no duration"):
        seconds_of(text)


def test_what_is_shown_cannot_steer_the_terminal():
    assert clean("a\x1b[31mb\u202ec\nd") == "a\\u001b[31mb\\u202ec d"


def test_a_run_keeps_copies_of_the_kernels_it_was_given(tmp_path):
    for name in ("op.py", "mine.py", "rival.py"):
        (tmp_path / name).write_text(f"# {name}\n")
    settings = RunSettings(
        problem=str(tmp_path / "op.py"),
        memo=str(tmp_path / "memo"),
        start=(str(tmp_path / "mine.py"),),
        baseline=(str(tmp_path / "rival.py"),),
    )
    RunDirectory.create(tmp_path / "run", settings, environment={})
    (tmp_path / "mine.py").unlink()
    run = RunDirectory.open(tmp_path / "run")
    assert run.kernels("start") == [("mine.py", "# mine.py\n")]
    assert run.kernels("baseline") == [("rival.py", "# rival.py\n")]
    (run.path / "start-0.py").unlink()
    with pytest.raises(RunError, match="copy of"):
        run.kernels("start")
