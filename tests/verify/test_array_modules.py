"""The interpreters touch arrays only through their module and methods, so cupy's work too."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from goldens import GOLDENS, Golden
from strict_arrays import StrictArray, strict

from mirage_onnx.ir.ops import ELEMENTWISE
from mirage_onnx.ir.region import RegionTensor
from mirage_onnx.verify.domain import Domain, Field, Float64, Rounded
from mirage_onnx.verify.interpret_steps import interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import Named
from mirage_onnx.verify.reduced import Instantiation, reduced_instantiations

ROWS = 2


def given(golden: Golden, sizes: Instantiation) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(4)
    return {
        i.name: rng.standard_normal((ROWS, *(sizes.extents[a] for a in i.axes)))
        for i in golden.region.inputs
    }


def outputs(domain: Domain, golden: Golden, sizes: Instantiation) -> list[Any]:
    region = golden.region
    data = given(golden, sizes)
    if isinstance(domain, Field):
        # Any numbers below p will do.
        data = {name: np.abs(x * 2**29).astype(np.uint64) for name, x in data.items()}
    inputs = {i.name: Named(domain.xp.asarray(data[i.name]), i.axes) for i in region.inputs}
    got = interpret_ugraph(domain, golden.ugraph, sizes.params, sizes.extents, inputs)
    want = interpret_terms(domain, region.terms, inputs, sizes.extents)
    return [*(got[o.name].data for o in region.outputs), *(v.data for v in want)]


@pytest.mark.parametrize("domain", [Float64, Rounded])
@pytest.mark.parametrize("golden", GOLDENS, ids=[g.name for g in GOLDENS])
def test_graphs_and_terms_on_another_array_module(golden: Golden, domain: type[Float64]) -> None:
    for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
        mine = outputs(domain(ROWS), golden, sizes)
        theirs = outputs(domain(ROWS, xp=strict), golden, sizes)
        for x, y in zip(mine, theirs, strict=True):
            assert isinstance(y, StrictArray)
            assert np.array_equal(x, y.get(), equal_nan=True)


@pytest.mark.parametrize("golden", GOLDENS, ids=[g.name for g in GOLDENS])
def test_residues_on_another_array_module(golden: Golden, monkeypatch: pytest.MonkeyPatch) -> None:
    """The field's own arithmetic may go through numpy's functions where they come back."""
    monkeypatch.setattr(StrictArray, "dispatches", True)
    for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
        mine, theirs = (
            outputs(Field(ROWS, np.random.default_rng(1), xp=xp), golden, sizes)
            for xp in (np, strict)
        )
        for x, y in zip(mine, theirs, strict=True):
            assert isinstance(y, StrictArray)
            assert np.array_equal(x, y.get())


def by_position(tensor: RegionTensor, data: np.ndarray, xp: Any) -> Any:
    return positional(tensor, xp.asarray(data))


@pytest.mark.parametrize("rounded", [False, True])
@pytest.mark.parametrize("golden", GOLDENS, ids=[g.name for g in GOLDENS])
def test_steps_on_another_array_module(golden: Golden, rounded: bool) -> None:
    region = golden.region
    sizes = reduced_instantiations(golden.ugraph, region.extents)[0]
    data = given(golden, sizes)
    mine, theirs = (
        interpret_steps(
            region,
            {i.tensor.name: by_position(i, data[i.name][0], xp) for i in region.inputs},
            rounded=rounded,
            xp=xp,
        )
        for xp in (np, strict)
    )
    for name, x in mine.items():
        y = theirs[name]
        assert isinstance(y, StrictArray)
        assert np.array_equal(x, y.get(), equal_nan=True), name


@pytest.mark.parametrize("slip", [
    lambda x: np.asarray(x), lambda x: np.where(x > 0, x, 0.0), lambda x: x + np.ones(3),
    lambda x: np.broadcast_to(x, (2, 3)), lambda x: np.add(x, np.ones(3)),
    lambda x: ELEMENTWISE["erf"].fn(x), lambda x: x[np.array([0, 1])], lambda x: x.max(initial=0),
])  # fmt: skip
def test_the_strict_module_catches_a_slip(slip: Any) -> None:
    with pytest.raises(TypeError):
        slip(strict.full((3,), 1.0))


def test_the_strict_module_lets_a_ufunc_through() -> None:
    assert isinstance(np.exp(strict.zeros((2,))), StrictArray)
