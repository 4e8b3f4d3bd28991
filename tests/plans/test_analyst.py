"""What the rule analyst says of a timed kernel."""

from kerntree.plans.analyst import RuleAnalyst
from kerntree.plans.candidate import Candidate
from kerntree.plans.evaluation import CaseTiming, Evaluation, Stage, Verdict
from kerntree.plans.finding import Finding
from kerntree.plans.graph import contiguous
from kerntree.plans.problem import Case, OutputSpec, Problem
from kerntree.plans.protocols import Analyst


def case(name: str, *, elements: int = 1_000_000, weight: float = 1.0) -> Case:
    output = OutputSpec(path="", tensor=contiguous((elements,), "float32"))
    return Case(name=name, weight=weight, inputs=(), outputs=(output,), output_tree=0)


def timing(name: str, median: float, floor: float | None) -> CaseTiming:
    return CaseTiming(
        case=name,
        baseline="eager",
        candidate_ns=(median,),
        baseline_ns=(median,),
        median_ns=median,
        median_low_ns=median,
        median_high_ns=median,
        baseline_median_ns=median,
        ratio=1.0,
        ratio_low=1.0,
        ratio_high=1.0,
        floor_ns=floor,
    )


def find(
    *timings: CaseTiming,
    kernels: tuple[str, ...] = (),
    torch_calls: tuple[str, ...] = (),
    cases: tuple[Case, ...] = (case("a"),),
) -> Finding:
    analyst: Analyst = RuleAnalyst()
    return analyst.find(
        Problem(name="p", path="p.py", folder=".", source="", cases=cases),
        Candidate(source="", language="cpp", kernels=kernels, torch_calls=torch_calls),
        Evaluation(key="k", verdict=Verdict.CORRECT, stage=Stage.TIME, config={}, timings=timings),
    )


def test_short_operators_of_many_calls_are_bound_by_launches():
    finding = find(timing("a", 40e3, 1e3), torch_calls=("x",) * 8)
    assert finding.limit == "launches"
    assert finding.recommended[0] == "fuse"


def test_one_launch_is_not_too_many():
    assert find(timing("a", 5e3, 1e3), kernels=("k",)).limit != "launches"


def test_several_kernels_of_a_long_operator_pass_results_through_memory():
    finding = find(timing("a", 40e6, 8e6), kernels=("k", "l"))
    assert finding.limit == "bytes"
    assert finding.recommended[0] == "fuse"
    assert finding.over_floor == 5.0


def test_torch_calls_alone_are_to_be_lowered_first():
    assert find(timing("a", 40e6, 8e6), torch_calls=("x", "y")).recommended == ("lower",)


def test_a_kernel_at_its_floor_gets_no_recommendation():
    finding = find(timing("a", 8.4e6, 8e6), kernels=("k",))
    assert finding.recommended == ()
    assert finding.over_floor is not None


def test_a_kernel_far_from_its_floor_computes_too_slowly():
    finding = find(timing("a", 160e6, 8e6), kernels=("k",))
    assert finding.limit == "operations"
    assert finding.recommended[0] == "vectorize"


def test_the_floor_comes_from_the_case_where_the_timing_has_none():
    # 4 MB at 20 GB/s take 0.2 ms
    finding = find(timing("a", 0.4e6, None), kernels=("k",))
    assert finding.over_floor == 2.0


def test_the_case_with_most_to_gain_by_weight_is_named():
    cases = (case("light", weight=0.1), case("heavy", weight=1.0))
    timings = (timing("light", 80e6, 8e6), timing("heavy", 24e6, 8e6))
    assert "heavy" in find(*timings, kernels=("k",), cases=cases).statement


def test_nothing_is_said_of_what_was_not_timed():
    assert find().limit == "unknown"
