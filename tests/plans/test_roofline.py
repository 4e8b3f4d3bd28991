"""The least bytes and operations of graphs."""

import pytest

from kerntree.plans.graph import (
    GraphInput,
    GraphOutput,
    Node,
    OperatorGraph,
    TensorSpec,
    contiguous,
)
from kerntree.plans.roofline import Cost, DeviceLimits, floor_seconds, graph_cost, group_cost


def tensor(name: str, *shape: int) -> GraphInput:
    return GraphInput(name=name, kind="user", target=name, spec=contiguous(shape, "float32"))


def node(name: str, target: str, *refs: str, shape: tuple[int, ...], args: tuple = ()) -> Node:
    return Node(
        name=name,
        target=f"aten.{target}",
        args=(*({"ref": ref} for ref in refs), *args),
        outputs=(contiguous(shape, "float32"),),
    )


def graph(inputs: tuple[GraphInput, ...], *nodes: Node, returns: tuple[str, ...]) -> OperatorGraph:
    return OperatorGraph(
        inputs=inputs,
        nodes=nodes,
        outputs=tuple(
            GraphOutput(kind="output", value=value, target=str(i))
            for i, value in enumerate(returns)
        ),
    )


def test_intermediate_results_and_unread_operators_cost_nothing():
    chain = graph(
        (tensor("x", 10, 10), tensor("unread", 1000)),
        node("e", "exp.default", "x", shape=(10, 10)),
        node("y", "relu.default", "e", shape=(10, 10)),
        node("dead", "exp.default", "unread", shape=(1000,)),
        returns=("y",),
    )
    assert graph_cost(chain).bytes == 2 * 400
    assert graph_cost(chain).operations == 200
    assert graph_cost(chain).work > graph_cost(chain).operations


def test_operators_run_one_by_one_pass_their_results_through_memory():
    chain = graph(
        (tensor("x", 10, 10),),
        node("e", "exp.default", "x", shape=(10, 10)),
        node("v", "view.default", "e", shape=(100,), args=([100],)),
        node("y", "relu.default", "v", shape=(100,)),
        returns=("y",),
    )
    assert group_cost(chain, ("e", "v", "y")).bytes == 4 * 400


def test_a_value_returned_twice_is_written_once():
    twice = graph(
        (tensor("x", 10),), node("y", "exp.default", "x", shape=(10,)), returns=("y", "y")
    )
    assert graph_cost(twice).bytes == 80


def test_a_look_up_need_not_read_its_whole_table():
    lookup = graph(
        (tensor("table", 1000, 8), tensor("i", 3)),
        node("y", "embedding.default", "table", "i", shape=(3, 8)),
        returns=("y",),
    )
    assert graph_cost(lookup).bytes == 3 * 8 * 4 + 3 * 4 + 3 * 8 * 4


def test_a_table_that_is_also_read_whole_counts_whole():
    lookup = graph(
        (tensor("table", 1000, 8), tensor("i", 3)),
        node("y", "embedding.default", "table", "i", shape=(3, 8)),
        node("z", "exp.default", "table", shape=(1000, 8)),
        returns=("y", "z"),
    )
    assert graph_cost(lookup).bytes == 32000 + 12 + 96 + 32000


def test_an_expanded_input_is_read_where_it_differs():
    wide = TensorSpec(shape=(100, 10), dtype="float32", strides=(0, 1))
    entry = GraphInput(name="x", kind="user", target="0", spec=wide)
    expanded = graph((entry,), node("y", "exp.default", "x", shape=(100, 10)), returns=("y",))
    assert graph_cost(expanded).bytes == 40 + 4000


def test_a_matrix_product_takes_two_operations_a_term():
    product = graph(
        (tensor("bias", 4), tensor("a", 3, 5), tensor("b", 5, 4)),
        node("y", "addmm.default", "bias", "a", "b", shape=(3, 4)),
        returns=("y",),
    )
    assert graph_cost(product).operations == 2 * 3 * 4 * 5


def test_a_reduction_takes_an_operation_an_element_read():
    total = graph((tensor("x", 100),), node("y", "sum.default", "x", shape=()), returns=("y",))
    assert graph_cost(total).operations == 100
    assert graph_cost(total).bytes == 404


@pytest.mark.parametrize(("moved", "computed", "seconds"), [(100, 1.0, 10.0), (10, 60.0, 3.0)])
def test_the_floor_is_the_slower_of_memory_and_arithmetic(moved, computed, seconds):
    limits = DeviceLimits(bandwidth_bytes_per_second=10.0, operations_per_second=20.0)
    assert floor_seconds(Cost(bytes=moved, operations=computed), limits) == seconds
