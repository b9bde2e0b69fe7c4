"""The interpreters touch arrays only through their module and methods; cupy's work too."""

import numpy as np
import pytest
from goldens import GOLDENS
from strict_arrays import StrictArray, strict

from mirage_onnx.ir.functions import ELEMENTWISE
from mirage_onnx.verify.domain import Field, Float64, Rounded
from mirage_onnx.verify.interpret_steps import interpret_steps, positional
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.reduced import reduced_instantiations

ROWS = 2
each_golden = pytest.mark.parametrize("golden", GOLDENS, ids=lambda g: g.name)


def given(golden, sizes):
  rng = np.random.default_rng(4)
  return {
    i.name: rng.standard_normal((ROWS, *(sizes.extents[a] for a in i.axes))) for i in golden.region.inputs
  }


def outputs(domain, golden, sizes):
  region = golden.region
  data = given(golden, sizes)
  if isinstance(domain, Field):
    # Any numbers below p will do.
    data = {name: np.abs(x * 2**29).astype(np.uint64) for name, x in data.items()}
  inputs = {i.name: NamedArray(domain.xp.asarray(data[i.name]), i.axes) for i in region.inputs}
  got = interpret_ugraph(domain, golden.ugraph, sizes.params, sizes.extents, inputs)
  want = interpret_terms(domain, region.terms, inputs, sizes.extents)
  return [*(got[o.name].data for o in region.outputs), *(v.data for v in want)]


@pytest.fixture(params=["strict", pytest.param("cupy", marks=pytest.mark.gpu)])
def module(request):
  return strict if request.param == "strict" else pytest.importorskip("cupy")


def same(module, mine, theirs, tolerance):
  assert isinstance(theirs, StrictArray if module is strict else module.ndarray)
  got = theirs.get()
  if module is strict or not tolerance:
    assert np.array_equal(mine, got, equal_nan=tolerance > 0)
  else:
    atol = tolerance * np.abs(mine[np.isfinite(mine)]).max(initial=0.0)
    np.testing.assert_allclose(got, mine, rtol=tolerance, atol=atol)


@pytest.mark.parametrize("domain", [Float64, Rounded])
@each_golden
def test_graphs_and_terms(golden, domain, module):
  for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
    mine = outputs(domain(ROWS), golden, sizes)
    theirs = outputs(domain(ROWS, xp=module), golden, sizes)
    for x, y in zip(mine, theirs, strict=True):
      same(module, x, y, 1e-12 if domain is Float64 else 2e-2)


@each_golden
def test_residues(golden, module, monkeypatch):
  """The field's own arithmetic may go through numpy's functions where they come back."""
  monkeypatch.setattr(StrictArray, "dispatches", True)
  for sizes in reduced_instantiations(golden.ugraph, golden.region.extents):
    mine, theirs = (
      outputs(Field(ROWS, np.random.default_rng(1), xp=xp), golden, sizes) for xp in (np, module)
    )
    for x, y in zip(mine, theirs, strict=True):
      same(module, x, y, 0.0)


def by_position(tensor, data, xp):
  return positional(tensor, xp.asarray(data))


@pytest.mark.parametrize("rounded", [False, True])
@each_golden
def test_steps(golden, rounded, module):
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
    for xp in (np, module)
  )
  for name, x in mine.items():
    same(module, x, theirs[name], 2e-2 if rounded else 1e-12)


@pytest.mark.parametrize("slip", [
  lambda x: np.asarray(x), lambda x: np.where(x > 0, x, 0.0), lambda x: x + np.ones(3),
  lambda x: np.broadcast_to(x, (2, 3)), lambda x: np.add(x, np.ones(3)),
  lambda x: ELEMENTWISE["erf"].reals(x), lambda x: x[np.array([0, 1])], lambda x: x.max(initial=0),
])  # fmt: skip
def test_the_strict_module_catches_a_slip(slip):
  with pytest.raises(TypeError):
    slip(strict.full((3,), 1.0))


def test_the_strict_module_lets_a_ufunc_through():
  assert isinstance(np.exp(strict.zeros((2,))), StrictArray)
