import os

import pytest

from kerntree.evaluator.device import CpuDevice, Limits
from kerntree.evaluator.floor import floor_ns, may_alias
from kerntree.plans.graph import GraphInput, GraphOutput, Node, OperatorGraph, contiguous
from kerntree.plans.problem import Case

LIMITS = Limits(bandwidth=1e9, cache_bandwidth=1e12, resident=0, operations=1e9)


def graph(*nodes, inputs=("x",), shape=(1000,), outputs=None):
    spec = contiguous(shape, "float32")
    return OperatorGraph(
        inputs=tuple(
            GraphInput(name=name, kind="user", target=str(k), spec=spec)
            for k, name in enumerate(inputs)
        ),
        nodes=nodes,
        outputs=outputs or (GraphOutput(kind="output", value=nodes[-1].name, target="0"),),
    )


def node(name, target, *args, shape=(1000,), dtype="float32"):
    return Node(
        name=name,
        target=f"aten.{target}",
        args=tuple({"ref": a} if isinstance(a, str) else a for a in args),
        outputs=(contiguous(shape, dtype),),
    )


def floor(graph, limits=LIMITS):
    case = Case(name="one", inputs=(), outputs=(), output_tree=None, graph=graph)
    return floor_ns(case, limits)


def test_a_pointwise_case_reads_and_writes_everything_once():
    assert floor(graph(node("y", "exp.default", "x"))) == pytest.approx(8000)
    add = node("y", "add.Tensor", "x", "z")
    assert floor(graph(add, inputs=("x", "z"))) == pytest.approx(12000)


def test_what_need_not_be_read_or_written_is_not_counted():
    row = node("y", "select.int", "e", 0, shape=(1,))
    assert floor(graph(node("e", "exp.default", "x"), row)) == pytest.approx(4)
    assert floor(graph(node("y", "select.int", "x", 0, shape=(1,)))) == 0  # a view of the input
    view = node("y", "view.default", "x", [10, 100], shape=(10, 100))
    assert floor(graph(view)) == pytest.approx(4000)  # an input that may be needed, no output
    zero = node("y", "mul.Tensor", "x", 0)
    assert floor(graph(zero)) == pytest.approx(4000)
    assert floor(graph(node("y", "exp.default", "x"), inputs=("x", "z"))) == pytest.approx(8000)
    assert floor(None) is None


def test_a_mutated_input_is_written():
    outputs = (GraphOutput(kind="input_mutation", value="y", target="0"),)
    assert floor(graph(node("y", "exp.default", "x"), outputs=outputs)) == pytest.approx(8000)


def test_outputs_may_share_memory_with_inputs_only_where_the_references_do():
    def alias(graph):
        return may_alias(Case(name="one", inputs=(), outputs=(), output_tree=None, graph=graph))

    assert alias(None)
    assert not alias(graph(node("y", "exp.default", "x")))
    assert alias(graph(node("y", "view.default", "x", [10, 100], shape=(10, 100))))
    written = GraphOutput(kind="input_mutation", value="y", target="0")
    returned = GraphOutput(kind="output", value="y", target="0")
    exp = node("y", "exp.default", "x")
    assert not alias(graph(exp, outputs=(written,)))
    assert alias(graph(exp, outputs=(written, returned)))


def test_caches_may_hold_what_fits():
    limits = Limits(bandwidth=1e9, cache_bandwidth=8e9, resident=4000, operations=1e12)
    assert floor(graph(node("y", "exp.default", "x")), limits) == pytest.approx(500 + 4000)


def test_a_product_needs_its_operations():
    product = node("y", "mm.default", "x", "z", shape=(100, 100))
    square = graph(product, inputs=("x", "z"), shape=(100, 100))
    assert floor(square, Limits(1e15, 1e15, 0, 1e9)) == pytest.approx(1e6)


def test_this_machine_is_described_and_cannot_be_outrun():
    device = CpuDevice.here()
    assert device.threads == len(os.sched_getaffinity(0))
    assert CpuDevice.here(threads=1).threads == 1
    assert device.description()["model"]
    assert device.memory > 1 << 28
    assert device.limits.bandwidth < device.limits.cache_bandwidth
    assert CpuDevice.here(threads=1).description() != device.description() or device.threads == 1


def test_a_machine_without_the_usual_files_still_has_a_description(tmp_path):
    device = CpuDevice.here(proc=tmp_path)
    assert device.description()["model"]
    (tmp_path / "cpuinfo").write_text("processor: 0\nmodel name\t: Some CPU\nflags : sse avx2\n")
    (tmp_path / "meminfo").write_text("MemAvailable:  1024 kB\n")
    device = CpuDevice.here(proc=tmp_path)
    assert (device.model, device.flags_level) == ("Some CPU", "avx2")
    assert device.memory == 1 << 20
