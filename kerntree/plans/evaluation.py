"""An evaluation: the typed outcome of running one candidate under one config."""

from enum import StrEnum

from pydantic import JsonValue

from kerntree.plans.candidate import Candidate, Config
from kerntree.plans.frozen import Frozen
from kerntree.plans.problem import Problem


class Stage(StrEnum):
    """Where in its short life a candidate was."""

    LOAD = "load"
    BUILD = "build"
    CHECK = "check"
    TIME = "time"


class Verdict(StrEnum):
    """What became of a candidate. All but LOST are properties of the candidate and are cached."""

    CORRECT = "correct"
    LOAD_FAILED = "load failed"  # the module cannot be imported or has no usable ModelNew
    BUILD_FAILED = "build failed"  # its compiler refused it
    RAISED = "raised"  # an exception in its forward
    CRASHED = "crashed"  # a signal, or an exit without a reply
    WRONG = "wrong result"
    WRONG_FORM = "wrong form"  # structure, shape or dtype of an output
    WRONG_MUTATION = "wrong mutation"  # changed what it must not, or left what it must change
    TIMED_OUT = "timed out"
    OUT_OF_MEMORY = "out of memory"
    FLOODED = "flooded"  # more output, files or replies than allowed
    FORBIDDEN = "forbidden"  # tried what the sandbox refuses
    FORGED = "forged"  # replies or times that cannot be true
    LOST = "lost"  # the evaluator's own fault or the machine's: retried, never cached


class OutputError(Frozen):
    """How far one output of one check lies from the float64 oracle.

    `relative_rms` is the RMS of the error over the RMS of the expected values, `worst` the
    largest error over the scale of its slice; `*_torch` are PyTorch's own errors on the same
    inputs, `*_limit` what was allowed.
    """

    case: str
    inputs: str
    output: str
    relative_rms: float
    relative_rms_torch: float
    relative_rms_limit: float
    worst: float
    worst_torch: float
    worst_limit: float


class CaseTiming(Frozen):
    """Paired samples of one case: candidate and baseline in turn, in one session.

    Samples are nanoseconds per call. `ratio` is baseline over candidate (above 1: faster), the
    median over pairs of blocks, with a 95 % bootstrap interval; `floor_ns` is the least time that
    the bytes and operations of the case allow on this device.
    """

    case: str
    baseline: str
    candidate_ns: tuple[float, ...]
    baseline_ns: tuple[float, ...]
    median_ns: float
    median_low_ns: float
    median_high_ns: float
    baseline_median_ns: float
    ratio: float
    ratio_low: float
    ratio_high: float
    floor_ns: float | None = None


class Evaluation(Frozen):
    """Everything known about one candidate under one config.

    `reward` is log2 of the baseline time over the candidate's, over all cases by weight; None
    unless CORRECT and timed. `evidence` explains a failure: the worst element, its index, what
    was expected and what came, the compiler's message. `seconds` are those of the candidate's
    stages (`load` includes the build), of what `oracle` and `baseline` did for it, and in `total`.
    `environment` records device, versions and the isolation level. `from_memo` says that nothing
    ran.
    """

    key: str
    verdict: Verdict
    stage: Stage
    config: Config
    message: str = ""
    evidence: dict[str, JsonValue] = {}
    errors: tuple[OutputError, ...] = ()
    timings: tuple[CaseTiming, ...] = ()
    reward: float | None = None
    reward_low: float | None = None
    reward_high: float | None = None
    seconds: dict[str, float] = {}
    environment: dict[str, JsonValue] = {}
    from_memo: bool = False

    @property
    def correct(self) -> bool:
        return self.verdict is Verdict.CORRECT


class Baseline(Frozen):
    """What a PyTorch user has today, measured at the start of a run."""

    name: str
    median_ns: dict[str, float]
    available: bool = True
    message: str = ""


class Duel(Frozen):
    """A challenger and the incumbent measured in turn, each in a new process.

    `gain` is log2(incumbent time / challenger time) over all cases by weight; the challenger is
    better only if `gain_low > 0`. `challenger` is its full fresh evaluation against the baseline.
    """

    challenger: Evaluation
    gain: float
    gain_low: float
    gain_high: float


class Replay(Frozen):
    """A kernel and its baseline, both launched as CUDA graphs: no time of Python's is in it.

    A reading beside the plain one, never a reward. Without timings `message` says why.
    """

    timings: tuple[CaseTiming, ...] = ()
    message: str = ""


class EvaluationRequest(Frozen):
    """One candidate under one config, to be checked and timed on every case of the problem."""

    problem: Problem
    candidate: Candidate
    config: Config
