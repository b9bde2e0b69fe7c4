"""From a candidate to its launch plan: inputs, weights stored in another order, workspace."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnx
import pytest
from region_data import sources_of
from small_models import Net, region_of, search_region

from mirage_onnx.custom_op.launch_plan import ALIGNMENT, Planned, dim_permutation, plan_candidate
from mirage_onnx.custom_op.plan import InputPtr, OutputPtr, WorkspacePtr, parse_plan
from mirage_onnx.errors import MirageError
from mirage_onnx.ir.dtype import DType
from mirage_onnx.ir.program import Tensor
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.tune.measure import stored


def source(shape: tuple[int, ...], dims: tuple[str, ...]) -> RegionTensor:
    """``dims``: the axes of each dimension as words."""
    held = tuple(tuple(d.split()) for d in dims)
    axes = tuple(dict.fromkeys(a for d in held for a in d))
    return RegionTensor("i0", DType.F16, axes, Tensor("w", DType.F16, shape), True, held)


@pytest.mark.parametrize(
    ("shape", "dims", "axes", "wanted"),
    [
        ((3, 5), ("a0", "a1"), ("a0", "a1"), (0, 1)),
        ((3, 5), ("a0", "a1"), ("a1", "a0"), (1, 0)),
        ((1, 3, 5), ("", "a0", "a1"), ("a1", "a0"), (0, 2, 1)),
        ((3, 1, 5), ("a0", "", "a1"), ("a1", "a0"), (2, 1, 0)),
        ((2, 3, 5), ("a0", "a0", "a1"), ("a1", "a0"), (2, 0, 1)),
        ((5, 2, 3), ("a1", "a0", "a0"), ("a0", "a1"), (1, 2, 0)),
        ((2, 1, 3, 5), ("a0", "", "a0", "a1"), ("a1", "a0"), (3, 1, 0, 2)),
        ((2, 3, 5), ("a0", "a1", "a2"), ("a2", "a0", "a1"), (2, 0, 1)),
        ((2, 3), ("a0", "a0"), ("a0",), (0, 1)),
        ((6, 5), ("a0 a1", "a2"), ("a0", "a1", "a2"), (0, 1)),
    ],
)
def test_order_of_dims(shape: Any, dims: Any, axes: Any, wanted: Any) -> None:
    tensor = source(shape, dims)
    assert dim_permutation(tensor, axes) == wanted
    x = np.arange(np.prod(shape)).reshape(shape)
    extents = {
        a: int(np.prod([n for n, d in zip(shape, dims, strict=True) if d == a])) for a in axes
    }
    if tensor.splits_dims:
        extents = {"a0": 2, "a1": 3, "a2": 5}
    assert np.array_equal(stored(tensor, axes, x, extents).ravel(), x.transpose(wanted).ravel())


def test_no_order_of_dims_reorders_what_one_dim_holds() -> None:
    tensor = source((6, 5), ("a0 a1", "a2"))
    with pytest.raises(MirageError) as caught:
        dim_permutation(tensor, ("a1", "a0", "a2"))
    assert caught.value.code == "INTERNAL"


def planned(model: onnx.ModelProto) -> tuple[Region, Any, Planned]:
    region = region_of(model)
    candidate = search_region(region).candidates[0].candidate
    sources = sources_of(region, candidate, "kernel")
    assert sources
    ids = list(range(7, 7 + len(sources)))
    return region, sources, plan_candidate(region, candidate, sources, ids)


def test_one_kernel() -> None:
    net = Net()
    x = net.input(2, 4, 512)
    y = net.MatMul(net.rms(x, net.weight(512)), net.weight(512, 256))
    region, (source_,), got = planned(net.model(y))
    (variant,) = got.plan.variants
    (launch,) = variant.launches
    assert (launch.cubin, launch.kernel) == (7, "kernel_k0")
    assert (launch.block, launch.cluster) == (source_.block, source_.cluster)
    assert got.plan.workspace is None
    assert [i.dims for i in got.plan.inputs] == [(2, 4, 512), (512,), (256, 512)]
    assert got.permutations == ((0, 1, 2), (0,), (1, 0))
    assert len(got.plan.outputs) == 1
    pointers = dict(zip(source_.args, launch.args, strict=True))
    for k, i in enumerate(region.inputs):
        assert pointers[i.name] == InputPtr(k)
    assert pointers["o0"] == OutputPtr(0)


def test_the_plan_is_text_and_back() -> None:
    net = Net()
    _, _, got = planned(net.model(net.Relu(net.MatMul(net.input(8, 512), net.weight(512, 256)))))
    assert parse_plan(got.plan.to_text()) == got.plan


def test_two_kernels_share_a_workspace() -> None:
    net = Net()
    x = net.input(8, 256)
    a, b = (net.MatMul(x, net.weight(256, 32)) for _ in range(2))
    y = net.MatMul(net.Mul(net.Mul(a, net.Sigmoid(a)), b), net.weight(32, 256))
    _, sources, got = planned(net.model(net.Add(y, x)))
    assert len(sources) == 2
    assert got.plan.workspace is not None
    first, second = got.plan.variants[0].launches
    assert [launch.cubin for launch in (first, second)] == [7, 8]
    shared = [a for a in first.args if isinstance(a, WorkspacePtr)]
    assert len(shared) == 1
    assert shared[0] in second.args
    assert not any(isinstance(a, OutputPtr) for a in first.args)
    text = got.plan.to_text()
    assert str(8 * 32 * 2) in text
    assert (8 * 32 * 2) % ALIGNMENT == 0


def test_two_outputs() -> None:
    net = Net()
    total = net.Add(net.input(8, 512), net.input(8, 512))
    region, _, got = planned(net.model(total, net.rms(total, net.weight(512))))
    assert len(got.plan.outputs) == len(region.outputs) == 2


def test_an_input_that_no_kernel_reads_is_still_an_input() -> None:
    net = Net()
    x, z = net.input(8, 64), net.input(8, 64)
    region, (source_,), got = planned(net.model(net.Exp(net.Add(z, net.Sub(x, x)))))
    assert len(got.plan.inputs) == 2
    assert len(source_.args) == 2
    assert {i.tensor.name for i in region.inputs} == {x, z}


def test_unused_tensors_do_not_change_the_plan() -> None:
    net = Net()
    region = region_of(net.model(net.Relu(net.Exp(net.input(8, 64)))))
    candidate = search_region(region).candidates[0].candidate
    sources = sources_of(region, candidate, "kernel")
    assert sources
    again = plan_candidate(replace(region, nodes=("x", "y")), candidate, sources, [7])
    assert again == plan_candidate(region, candidate, sources, [7])
