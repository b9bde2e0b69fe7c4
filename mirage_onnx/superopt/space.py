"""Which kernels a search enumerates.

``ALL`` is the space of the design: any block graph over the roles of the dimensions. ``EMITTED`` is
the part of it with the special forms of code generation, whose costs are calibrated: streaming
kernels (one loop, whose axis every contraction in it runs over, with weights on one side) and row
kernels (no loop, one axis spread over the threads). The pipeline searches that where weights
stream, and all where it has no kernel for a contraction: where two activations meet, and where nothing
but products with weights is reduced, of more than rows and columns: heads written apart (``space_of``).
"""

from dataclasses import dataclass

from mirage_onnx.ir.region import Region
from mirage_onnx.ir.term import MUL, REDUCTIONS, SUM, Term, walk


@dataclass(frozen=True, slots=True)
class Space:
  """``general``: contractions over axes of a tile and over several axes, loops without one, running maxima.

  ``split``: a reduction shared out over the blocks of a grid, whose partial results a later kernel combines.
  """

  general: bool = True
  split: bool = True


ALL = Space()
EMITTED = Space(general=False, split=False)


def space_of(region: Region) -> Space:
  """The space that the pipeline searches for a region."""
  reduced = (u.attr for u in walk(region.terms) if u.op in REDUCTIONS)
  if any(region.runtime.keys() & attr for attr in reduced if isinstance(attr, tuple)):
    return ALL  # no streaming and no row kernel sums over what only a run counts
  constant = {i.tensor.name for i in region.inputs if i.is_weight} | set(region.constants)
  for step in region.steps:
    names = [x for x in step.inputs if isinstance(x, str)]
    if all(n in constant for n in names):
      constant.add(step.output.name)
    elif step.op == "matmul" and not any(n in constant for n in names):
      return ALL
  reductions = [u for u in walk(region.terms) if u.op in REDUCTIONS]
  # With a norm in front the wide space has tens of thousands of states.
  return ALL if reductions and all(map(_is_over_many_axes, reductions)) else EMITTED


def _is_over_many_axes(x: Term) -> bool:
  """Whether a contraction has more than rows and columns: a streaming kernel has no place for it."""
  if x.op != SUM or x.args[0].op != MUL or len(x.axes) <= 2:
    return False
  bound = set(x.attr)  # type: ignore[arg-type]
  return len({f.axes for f in x.args[0].args if bound & set(f.axes)}) > 1
