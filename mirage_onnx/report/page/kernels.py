"""The kernels of each region of a record, generated again from what the model's bundle says."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.model_nodes import CustomNode, ModelFile
from mirage_onnx.custom_op.provenance import regenerate
from mirage_onnx.errors import MirageError
from mirage_onnx.ir import KernelParams, UGraph, parse_ugraph
from mirage_onnx.report.record_run import region_of
from mirage_onnx.report.run_record import RunRecord


@dataclass(frozen=True, slots=True)
class RegionKernels:
  """``nodes``: the custom nodes, by number of the place; the program of the first, or ``problem``."""

  nodes: Mapping[int, str]
  ugraph: UGraph | None = None
  params: tuple[KernelParams, ...] = ()
  sources: tuple[KernelSource, ...] = ()
  nvrtc: str = ""
  problem: str = ""


def nodes_of_places(record: RunRecord, file: ModelFile) -> dict[int, CustomNode]:
  """The custom node of every place of the record that the model still has, by number of the place."""
  customs = {n.name: n for n in file.custom_nodes() if not n.is_nested}
  where: dict[tuple[str, ...], list[CustomNode]] = {}
  for proto in file.proto.graph.node:
    if (name := region_of(proto)) and proto.name in customs:
      where.setdefault(_key(name.split(",")), []).append(customs[proto.name])
  of_place: dict[int, CustomNode] = {}
  for i, place in enumerate(record.places):
    # A name may hold a comma, so both sides are split at them.
    names = [part for n in place.nodes for part in record.nodes[n].name.split(",")]
    if found := where.get(_key(names)):
      of_place[i] = found.pop(0)
  return of_place


def read_kernels(record: RunRecord, file: ModelFile) -> list[RegionKernels]:
  """By number of the region."""
  of_place = nodes_of_places(record, file)
  try:
    bundle: Bundle | str = file.bundle()
  except MirageError as error:
    bundle = error.line()
  return [_region(r, record, of_place, bundle) for r in range(len(record.regions))]


def _key(names: list[str]) -> tuple[str, ...]:
  return tuple(sorted(names))


def _region(
  region: int, record: RunRecord, of_place: Mapping[int, CustomNode], bundle: Bundle | str
) -> RegionKernels:
  own = {i: of_place[i] for i, p in enumerate(record.places) if p.region == region and i in of_place}
  names = {i: n.name for i, n in own.items()}
  if not own:
    return RegionKernels(names, problem="the model has no node for it any more")
  if isinstance(bundle, str):
    return RegionKernels(names, problem=bundle)
  first = next(iter(own.values()))
  try:
    if first.plan >= len(bundle.provenance):
      raise MirageError("BUNDLE_INVALID", f"it has no provenance of plan {first.plan}")
    provenance = bundle.provenance[first.plan]
    made = regenerate(provenance, f"node '{first.name}'")
  except MirageError as error:
    return RegionKernels(names, problem=error.line())
  params = tuple(KernelParams.from_text(text) for text in provenance["params"])
  sources = tuple(k.source for k in made.kernels)
  return RegionKernels(names, parse_ugraph(provenance["ugraph"]), params, sources, made.nvrtc)
