"""The op-by-op baseline against times worked out by hand, on a target with round numbers."""

from dataclasses import replace

import numpy as np
import pytest
from op_by_op import FREE, kernel_us, op_by_op_us, step_times_us
from program_net import region
from search_programs import PROGRAMS

from mirage_onnx.superopt.cost import LATENCY_US
from mirage_onnx.target import H200

#: A byte takes 1e-6 us, and so does a million operations of the tensor cores.
ROUND = replace(H200, launch_us=1.0, ramp_us=2.0, stream_tbps=1.0, mma_tflops=1e6)


def times(made):
    return [(s.op, round(us, 9)) for s, us in step_times_us(made, ROUND)]


@pytest.mark.parametrize(
    ("moved", "flops", "want"),
    [
        (0, 0, 1.25),  # launch and one trip to memory
        (100_000, 0, 1.25),  # 0.1 us and a quarter of it are less than the trip
        (1_000_000, 0, 2.25),  # 1 us of bytes and a ramp of a quarter of it
        (8_000_000, 0, 11.0),  # 8 us and the whole ramp: a quarter would be 2
        (20_000_000, 0, 23.0),
        (1_000_000, 20 * 10**12, 23.0),  # 20 us of arithmetic hide the bytes
    ],
)
def test_one_kernel(moved, flops, want):
    assert LATENCY_US == 0.25
    assert kernel_us(moved, flops, ROUND) == pytest.approx(want)


def add_rows(net):
    return (net.Add(net.input(1000, 1000), net.input(1000, 1000)),)


def square_of_one(net):
    x = net.input(1000, 1000)
    return (net.Mul(x, x),)


def wide_exponential(net):
    return (net.half(net.Exp(net.wide(net.input(1000, 1000)))),)


def two_widths(net):
    e = net.Exp(net.wide(net.input(1000, 1000)))
    return net.ReduceSum(e, [-1]), net.Mul(net.half(e), 2.0)


def turned(net):
    x = net.Transpose(net.input(1000, 4, 250), perm=[1, 0, 2])
    return (net.Reshape(net.Transpose(net.Tanh(x), perm=[1, 0, 2]), [1000, 1000]),)


def linear(net):
    return (net.Relu(net.MatMul(net.input(1000, 2000), net.weight(2000, 500))),)


@pytest.mark.parametrize(
    ("build", "want"),
    [
        # 3 tensors of 2 MB: 6 us and a ramp of 1.5.
        (add_rows, [("add", 8.5)]),
        # Read once: 4 us and a ramp of 1. The importer sees a product, the terms a square.
        (square_of_one, [("mul", 6.0)]),
        # fp16 in and out: the casts need no memory.
        (wide_exponential, [("exp", 6.0)]),
        # exp: 2 MB and 2 MB. The sum reads 2 MB and writes 4 KB in fp32, the product 2 and 2 MB.
        (two_widths, [("exp", 6.0), ("sum", 3.505), ("mul", 6.0)]),
        (turned, [("tanh", 6.0)]),
        # 4 + 2 + 1 MB take 7 us, 2e9 operations 0.002 us; then 1 MB and 1 MB.
        (linear, [("matmul", 9.75), ("relu", 3.5)]),
    ],
    ids=lambda p: getattr(p, "__name__", ""),
)
def test_programs(build, want):
    made = region(build)
    assert times(made) == want
    assert op_by_op_us(made, ROUND) == pytest.approx(sum(us for _, us in want))


def test_contractions_are_bound_by_arithmetic():
    """2 x 4096^3 operations at 780 TFLOP/s, and 1.75 us of ramp."""

    def build(net):
        return (net.MatMul(net.input(4096, 4096), net.weight(4096, 4096)),)

    want = 0.95 + 1.75 + 2 * 4096**3 / 780e6
    assert op_by_op_us(region(build), H200) == pytest.approx(want)


def test_batches():
    """[8, 10, 100] x [8, 100, 20]: 16, 32 and 3.2 KB and 320000 operations."""

    def build(net):
        return (net.MatMul(net.input(8, 10, 100), net.input(8, 100, 20)),)

    slow = replace(ROUND, mma_tflops=0.1)
    assert op_by_op_us(region(build), slow) == pytest.approx(1 + 1.25 * 3.2)


def test_an_output_that_only_changes_its_layout_is_free():
    def build(net):
        x = net.input(64, 32)
        return net.Transpose(x, perm=[1, 0]), net.Exp(x)

    assert [op for op, _ in times(region(build))] == ["exp"]


def test_more_bytes_take_longer():
    def build(rows):
        return lambda net: (net.rms_norm(net.input(rows, 4096), net.weight(4096)),)

    found = [op_by_op_us(region(build(rows)), H200) for rows in (256, 1024, 4096, 16384)]
    assert found == sorted(found)
    assert len(set(found)) == len(found)


def test_replaced_extents_are_refused():
    made = PROGRAMS["rmsnorm_linear"]()
    with pytest.raises(ValueError, match="has"):
        op_by_op_us(replace(made, extents={a: 2 * n for a, n in made.extents.items()}), H200)


@pytest.mark.parametrize("name", PROGRAMS)
def test_never_below_what_must_be_moved(name):
    """Inputs are read and outputs written once at least, by as many launches as steps compute."""
    made = PROGRAMS[name]()
    bytes_moved = sum(
        int(np.prod(x.tensor.shape)) * x.dtype.size_bytes for x in (*made.inputs, *made.outputs)
    )
    kernels = len(step_times_us(made, H200))
    assert kernels == sum(s.op not in FREE for s in made.steps)
    found = op_by_op_us(made, H200)
    assert found > kernels * H200.launch_us + bytes_moved / (H200.stream_tbps * 1e6)
