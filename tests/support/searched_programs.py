"""The canonical programs that the search's derivations of one kernel give, without its limits."""

from canonical_size import Sizes

from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.build import build_kernel
from mirage_onnx.superopt.canonical import block_terms, canonical_kernel
from mirage_onnx.superopt.choices import Counts, RoleSetting
from mirage_onnx.superopt.derive import derivations
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.space import Space
from mirage_onnx.superopt.units import Units
from mirage_onnx.target import H200

#: Without the limits of ``SearchBound`` that choose among equal heavy work by its cost.
EXHAUSTIVE = SearchBound(
  operators=8, nodes=4000, states=500_000, chains=None, parts=None, groupings=None,
  spellings=None,
)  # fmt: skip
#: One kernel, so no parts of a grid.
SPACE = Space(general=True, split=False)


def search_programs(region, roles, size, *, space=SPACE, bound=EXHAUSTIVE):
  """Canonical text -> kernel of all derivations of at most this size, and what was pruned."""
  units = Units(region, H200, bound, AXIOMS, space)
  g, counts = units.graph, Counts(limit=bound.states)
  inputs, none = frozenset(units.inputs), frozenset[int]()
  setting = RoleSetting(g, roles, space, inputs, none, units.original, region.extents, counts)
  targets = tuple((c, units.tensor(c)) for c in units.outputs)
  sizes, programs = Sizes(), dict[str, Kernel]()
  for derivation in derivations(setting, units.outputs, bound):
    try:
      _, kernel, _ = build_kernel(
        g, "k", targets, roles, derivation, units.inputs, clusters=False, space=space
      )
    except RejectionError as e:
      counts.prune(f"not built: {e.rejection.reason}")
      continue
    terms, known = block_terms(kernel)
    if len(sizes.units(terms[kernel.saves[0].arg], known)) > size:
      counts.prune("larger than the bound")
      continue
    tensors = (*units.inputs.values(), *(t for _, t in targets))
    programs[canonical_kernel(kernel, tensors)] = kernel
  return programs, counts.pruned
