"""The original's saved µGraphs, read into ours and judged against a reference.

    graph = mirage_onnx.new_kernel_graph()
    ...
    for verdict in mirage_onnx.verify.check_saved("gqa_bs1.json", graph):
        print(verdict.accepted)

The way of a graph: ``saved_format`` (JSON) -> ``saved_read`` (positional draft over factors)
-> ``saved_axes`` (named axes; the reference over these) -> ``saved_emit`` (µGraph) -> the proof.
Ties of dimensions are those that the reference makes and those that the saved graph makes at its
own shapes; a graph that ties two axes of one value of the reference is refused, so that the proof
is always about the whole reference.
"""

from dataclasses import dataclass
from pathlib import Path

from mirage_onnx.errors import Rejection, RejectionError
from mirage_onnx.formats.mirage.axes import name_factors, refine
from mirage_onnx.formats.mirage.emit import emit_ugraph
from mirage_onnx.formats.mirage.graph import SavedGraph, read_saved
from mirage_onnx.formats.mirage.read import read_draft
from mirage_onnx.importer.kernel_graph import ProgramBuilder
from mirage_onnx.ir import KernelParams, Program, Region, UGraph
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.verdict import Verdict, judge


@dataclass(frozen=True, slots=True)
class SavedProgram:
  """A saved graph as ours: ``region`` is the reference over the axes of ``ugraph``.

  ``params`` are the numbers of its kernels at the extents of ``region``, the saved ones.
  """

  region: Region
  ugraph: UGraph
  params: tuple[KernelParams, ...]


def translate(graph: SavedGraph, program: Program, region: Region) -> SavedProgram | Rejection:
  """``graph`` as a µGraph; ``region`` is that of ``program``.

  A refusal is SAVED_INVALID or SAVED_UNSUPPORTED.
  """
  try:
    draft = read_draft(graph, program, region)
    axes = name_factors(draft)
    return SavedProgram(refine(region, draft, axes), *emit_ugraph(draft, axes))
  except RejectionError as e:
    return e.rejection


def check_saved(path: str | Path, reference: ProgramBuilder) -> tuple[Verdict, ...]:
  """One verdict per graph of the file: does it compute ``reference``?

  Inputs and outputs correspond by position: the i-th ``kn_input_op`` is the i-th ``new_input`` of
  the reference, the i-th ``kn_output_op`` the i-th ``mark_output``; shapes and types are equal.

  Raises:
      MirageError: FILE_MISSING, FILE_UNREADABLE or NOT_SAVED_GRAPHS; GRAPH_OPERAND for a
          reference without a clear output.
      RejectionError: the reference has no region (AXES_CONFLICT: a tensor that meets itself
          transposed).
  """
  program = reference.program()
  region = whole_region(program)
  return tuple(_check(graph, program, region) for graph in read_saved(path))


def _check(graph: SavedGraph | Rejection, program: Program, region: Region) -> Verdict:
  ours = graph if isinstance(graph, Rejection) else translate(graph, program, region)
  if isinstance(ours, Rejection):
    return Verdict(accepted=False, rejection=ours)
  return judge(ours.region, ours.ugraph)
