"""One random test: a region and a µGraph on the same random inputs, element by element."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from mirage_onnx.ir import Region, RegionTensor, UGraph
from mirage_onnx.verify.domain import Field
from mirage_onnx.verify.field import VOID
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.reduced import Instantiation


@dataclass(frozen=True, slots=True)
class Agreement:
  """No element differs, and every one exists in at least ``valid`` draws in both programs."""

  valid: int


@dataclass(frozen=True, slots=True)
class Difference:
  """Where and on what two programs differ: residues ``got`` and ``want`` of one element.

  ``inputs``: region input -> values of ``domain``; ``draw`` is the one that shows it.
  """

  domain: Field
  sizes: Instantiation
  inputs: Mapping[str, NamedArray]
  output: RegionTensor
  draw: int
  element: tuple[int, ...]
  want: int
  got: int
  differing: int
  compared: int

  @property
  def place(self) -> str:
    indices = zip(self.output.axes, self.element, strict=True)
    return f"{self.output.name}[{', '.join(f'{a}={i}' for a, i in indices)}]"

  @property
  def reason(self) -> str:
    return (
      f"output {self.place} is {self.got} and should be {self.want} in the field; "
      f"{self.differing} of {self.compared} values differ; {self.sizes.to_text()}"
    )


def random_inputs(
  region: Region, domain: Field, extents: Mapping[str, int], rng: np.random.Generator
) -> dict[str, NamedArray]:
  """Region input -> random values over its axes."""
  return {
    i.name: NamedArray(domain.random(rng, tuple(extents[a] for a in i.axes)), i.axes) for i in region.inputs
  }


def compare(
  region: Region, graph: UGraph, sizes: Instantiation, domain: Field, inputs: Mapping[str, NamedArray]
) -> Agreement | Difference:
  """Run both programs and compare what exists in both.

  Raises:
      ValueError: the µGraph is ill-formed.
  """
  want = interpret_terms(domain, region.terms, inputs, sizes.extents)
  got = interpret_ugraph(domain, graph, sizes.params, sizes.extents, inputs)
  valid = domain.draws
  for output, reference in zip(region.outputs, want, strict=True):
    x, y = whole(reference, output, sizes.extents), got[output.name].aligned(output.axes)
    u, v = domain.residues(x), domain.residues(y)
    exists = (u != VOID) & (v != VOID)
    wrong = exists & domain.unequal(x, y)
    if wrong.any():
      at = tuple(int(i) for i in np.argwhere(wrong)[0])
      return Difference(
        domain, sizes, inputs, output, at[0], at[1:], int(u[at]), int(v[at]),
        int(wrong.sum()), wrong.size,
      )  # fmt: skip
    valid = min(valid, int(exists.sum(axis=0).min()))
  return Agreement(valid)


def whole(value: NamedArray, output: RegionTensor, extents: Mapping[str, int]) -> np.ndarray:
  """[rows, *output.axes]; a term may vary over fewer axes than its tensor."""
  data = value.aligned(output.axes)
  return np.broadcast_to(data, (data.shape[0], *(extents[a] for a in output.axes)))
