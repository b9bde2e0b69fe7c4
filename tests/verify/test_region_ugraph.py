"""The steps of a region as a µGraph: the same values, exact and rounded."""

from __future__ import annotations

import numpy as np
import pytest
from goldens import GOLDENS, Golden
from small_models import Net, region_of

from mirage_onnx.ir.region import Region
from mirage_onnx.ir.ugraph import KernelParams
from mirage_onnx.verify.domain import Float64, Rounded
from mirage_onnx.verify.interpret_steps import by_axes, interpret_steps, positional
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.region_ugraph import region_graph
from mirage_onnx.verify.samples import sample_extents, sample_inputs


def assert_same(region: Region, *, rounded: bool) -> None:
    sizes = sample_extents(region, 24, 4)
    inputs = sample_inputs(region, sizes, {}, np.random.default_rng(3))
    graph = region_graph(region)
    named = {i.name: graph.named(i, inputs[i.name]) for i in region.inputs}
    rows = next(iter(inputs.values())).shape[0]
    domain = Rounded(rows) if rounded else Float64(rows)
    got = interpret_ugraph(
        domain, graph.ugraph, (KernelParams(),), graph.extents_at(sizes), named
    )  # fmt: skip
    for row in range(rows):
        feed = {i.tensor.name: positional(i, inputs[i.name][row]) for i in region.inputs}
        want = interpret_steps(region, feed, rounded=rounded)
        for o in region.outputs:
            x = by_axes(o, want[o.tensor.name], sizes)
            y = got[o.name].data[row].reshape(x.shape)
            # A mean divides here, and multiplies nowhere: the last bits of float64 may differ.
            np.testing.assert_allclose(y, x, rtol=2e-3 if rounded else 1e-9, atol=1e-9)


@pytest.mark.parametrize("given", GOLDENS, ids=lambda g: g.name)
@pytest.mark.parametrize("rounded", [False, True])
def test_steps_have_their_values(given: Golden, rounded: bool) -> None:
    assert_same(given.region, rounded=rounded)


def test_joined_axes_dimensions_of_one_and_constants_with_exponents() -> None:
    net = Net()
    x = net.input(1, 4, 8, 32)
    y = net.Gelu(net.Transpose(net.Mul(x, 3.0), perm=[0, 2, 1, 3]))
    region = region_of(net.model(net.Sub(y, net.ReduceMean(y, [-1]))))
    assert_same(region, rounded=False)
