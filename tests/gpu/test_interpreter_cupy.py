"""The interpreters on cupy arrays give what they give on numpy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from goldens import GOLDENS, Golden

from mirage_onnx.verify.domain import Domain, Field, Float64, Rounded
from mirage_onnx.verify.interpret_steps import interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named
from mirage_onnx.verify.reduced import Instantiation, reduced_instantiations

pytestmark = pytest.mark.gpu
ROWS = 2
NAMES = [g.name for g in GOLDENS]


@pytest.fixture(scope="module")
def cupy() -> Any:
    return pytest.importorskip("cupy")


def shapes(golden: Golden, sizes: Instantiation) -> dict[str, tuple[int, ...]]:
    return {i.name: tuple(sizes.extents[a] for a in i.axes) for i in golden.region.inputs}


def outputs(
    domain: Domain, golden: Golden, sizes: Instantiation, data: dict[str, np.ndarray]
) -> list[np.ndarray]:
    """Of the µGraph, then of the terms; on the host."""
    region = golden.region
    inputs = {i.name: Named(domain.xp.asarray(data[i.name]), i.axes) for i in region.inputs}
    got = interpret_ugraph(domain, golden.ugraph, sizes.params, sizes.extents, inputs)
    want = interpret_terms(domain, region.terms, inputs, sizes.extents)
    values = [*(got[o.name].data for o in region.outputs), *(v.data for v in want)]
    return values if domain.xp is np else [v.get() for v in values]  # type: ignore[attr-defined]


@pytest.mark.parametrize("golden", GOLDENS, ids=NAMES)
def test_residues_are_the_same(golden: Golden, cupy: Any) -> None:
    for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
        rng = np.random.default_rng(0)
        host = Field(ROWS, np.random.default_rng(1))
        device = Field(ROWS, np.random.default_rng(1), xp=cupy)
        data = {n: host.random(rng, s) for n, s in shapes(golden, sizes).items()}
        for x, y in zip(
            outputs(host, golden, sizes, data), outputs(device, golden, sizes, data), strict=True
        ):
            assert np.array_equal(x, y)


@pytest.mark.parametrize("domain", [Float64, Rounded])
@pytest.mark.parametrize("golden", GOLDENS, ids=NAMES)
def test_reals_are_the_same_to_rounding(golden: Golden, domain: type[Float64], cupy: Any) -> None:
    tolerance = 1e-12 if domain is Float64 else 2e-2
    for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
        rng = np.random.default_rng(0)
        data = {
            n: rng.standard_normal((ROWS, *shape)) for n, shape in shapes(golden, sizes).items()
        }
        for x, y in zip(
            outputs(domain(ROWS), golden, sizes, data),
            outputs(domain(ROWS, xp=cupy), golden, sizes, data),
            strict=True,
        ):
            np.testing.assert_allclose(y, x, rtol=tolerance, atol=tolerance * np.abs(x).max())


@pytest.mark.parametrize("golden", GOLDENS, ids=NAMES)
def test_steps_are_the_same_to_rounding(golden: Golden, cupy: Any) -> None:
    region = golden.region
    sizes = reduced_instantiations(golden.ugraph, region.extents)[0]
    rng = np.random.default_rng(0)
    data = {n: rng.standard_normal(shape) for n, shape in shapes(golden, sizes).items()}
    host, device = (
        interpret_steps(
            region,
            {i.tensor.name: positional(i, xp.asarray(data[i.name])) for i in region.inputs},
            rounded=False,
            xp=xp,
        )
        for xp in (np, cupy)
    )
    for name, x in host.items():
        np.testing.assert_allclose(device[name].get(), x, rtol=1e-12, atol=1e-12)  # type: ignore[attr-defined]
