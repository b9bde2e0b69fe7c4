"""Numbers for known µGraphs at other extents: all that a region of a known structure needs.

What a µGraph computes does not depend on sizes, which kernels it has and how long they take does.
So the graphs of a structure are kept (``structures.py``), and here they are ranked for the extents
of one region: a kernel that several of them share is solved once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from mirage_onnx.cost.model import PARTS_ASSUMED
from mirage_onnx.cost.tiled_work import TiledWork
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir import (
  Candidate,
  Kernel,
  KTensor,
  UGraph,
  is_part_axis,
  parse_ugraph,
  print_kernel,
  print_ugraph,
)
from mirage_onnx.lower.layouts import Family, lay_out
from mirage_onnx.superopt.result import SearchBound
from mirage_onnx.superopt.solved import Solved, solved, together
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class KnownGraph:
  """A µGraph without numbers, with the family of every kernel, and a tiled one taken apart."""

  text: str
  graph: UGraph
  families: tuple[Family, ...]
  works: tuple[TiledWork | None, ...] = field(compare=False, repr=False)

  @classmethod
  def of(cls, text: str) -> KnownGraph:
    """The µGraph of its canonical text.

    Raises:
        ValueError: it is not the text of a µGraph whose kernels have layouts.
    """
    try:
      graph = parse_ugraph(text)
      tensors = {t.name: t for t in graph.tensors}
      families = tuple(lay_out(k, tensors).family for k in graph.kernels)
      works = tuple(
        TiledWork.of(k, tensors) if f is Family.TILED else None
        for k, f in zip(graph.kernels, families, strict=True)
      )
    except (KeyError, IndexError, TypeError, RejectionError) as error:
      raise ValueError(f"not a µGraph: {error}") from error
    if print_ugraph(graph) != text:
      raise ValueError("a µGraph in another spelling")
    return cls(text, graph, families, works)


@dataclass(frozen=True, slots=True)
class Ranked:
  """A known µGraph with its best numbers at some extents, as candidates, cheapest first."""

  known: KnownGraph
  candidates: tuple[Candidate, ...]

  @property
  def predicted_us(self) -> float:
    """Of the best numbers."""
    return self.candidates[0].predicted_us


def renumber(
  graphs: Sequence[KnownGraph], extents: Mapping[str, int], target: Target, bound: SearchBound
) -> tuple[Ranked, ...]:
  """The µGraphs that fit ``target`` at these extents, cheapest predicted first, ties as given.

  Each has ``bound.points`` candidates at most. Predictions are those of the search: the sum over
  the kernels, where a part axis has ``PARTS_ASSUMED`` elements.
  """
  memo: dict[tuple[str, tuple[KTensor, ...]], Solved | None] = {}
  found: list[Ranked] = []
  for known in graphs:
    graph = known.graph
    tensors = {t.name: t for t in graph.tensors}
    parts = {a: PARTS_ASSUMED for t in graph.tensors for a in t.axes if is_part_axis(a)}
    sizes = {**extents, **parts}
    each: list[Solved | None] = []
    for kernel, family, work in zip(graph.kernels, known.families, known.works, strict=True):
      key = _content(kernel, tensors)
      if key not in memo:
        memo[key] = solved(family, kernel, tensors, sizes, target, keep=bound.points, work=work)
      each.append(memo[key])
    fit = [numbers for numbers in each if numbers is not None]
    if len(fit) == len(each):
      candidates = tuple(Candidate(graph, p, cost_us) for cost_us, p in together(fit))
      found.append(Ranked(known, candidates))
  return tuple(sorted(found, key=lambda r: r.predicted_us))


def _content(kernel: Kernel, tensors: Mapping[str, KTensor]) -> tuple[str, tuple[KTensor, ...]]:
  """What the numbers of a kernel depend on, extents apart: all but its name."""
  return print_kernel(replace(kernel, name="k")), tuple(tensors[name] for name in kernel.touched)
