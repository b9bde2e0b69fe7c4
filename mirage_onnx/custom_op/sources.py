"""The text behind every launch of a model's plans, and whether it is the text of the images."""

from collections.abc import Sequence
from dataclasses import dataclass

import onnx

from mirage_onnx.codegen.whole_text import GENERATOR_VERSION
from mirage_onnx.custom_op.bundle import Bundle
from mirage_onnx.custom_op.derived_interface import check_interfaces
from mirage_onnx.custom_op.model_nodes import CustomNode, Model, ModelFile
from mirage_onnx.custom_op.plan import Plan, parse_plan
from mirage_onnx.custom_op.plan_check import plan_differs
from mirage_onnx.custom_op.provenance import KernelRecord, Regenerated, check_images, regenerate, sha256
from mirage_onnx.errors import MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.importer.steps_apart import apart_as_in, step_sizes
from mirage_onnx.target import suffixes_that_run


@dataclass(frozen=True, slots=True)
class PlanSources:
  """A plan with the kernel of every launch, ``kernels[variant][launch]``; ``where``: its node."""

  where: str
  plan: Plan
  kernels: tuple[tuple[KernelRecord, ...], ...]
  regenerated: Regenerated


def read_sources(nodes: Sequence[CustomNode], bundle: Bundle) -> dict[int, PlanSources]:
  """By number of the plan, those that ``nodes`` run.

  Raises:
      MirageError: SOURCE_MISMATCH, naming node and kernel; PLAN_INVALID.
  """
  found: dict[int, PlanSources] = {}
  for node in nodes:
    if node.plan not in found:
      found[node.plan] = _read(node, bundle)
  return found


@dataclass(frozen=True, slots=True)
class SourceCheck:
  """``text``: one sentence on how the images of a model are tied to their text.

  ``unseen``: why images were not compiled again and compared, or "".
  """

  text: str = ""
  unseen: str = ""


def check_sources(model: Model, *, strict: bool, original: Model | None = None) -> SourceCheck:
  """Whether the launches of a model are those of its µGraphs, and its images those of their text.

  ``strict``: kernels of another generator version are an error, not a remark. ``original``: the model
  that it was made of, from which the interfaces of its nodes are made again.

  Raises:
      MirageError: SOURCE_MISMATCH, PLAN_INVALID, BUNDLE_INVALID.
  """
  file = ModelFile.read(model)
  nodes = file.custom_nodes()
  if not nodes:
    return SourceCheck()
  bundle = file.bundle()
  others = sorted({str(r.get("generator")) for r in bundle.provenance} - {str(GENERATOR_VERSION)})
  if not strict and others:
    text = f"not checked: made by generator {', '.join(others)}, this is {GENERATOR_VERSION}; optimize again"
    return SourceCheck(text[:200], text[:200])
  plans = read_sources(nodes, bundle).values()
  for found in plans:
    if why := plan_differs(found.plan, found.regenerated):
      raise MirageError("SOURCE_MISMATCH", f"{found.where}: {why}")
  derived = _derived(original, file.proto, nodes, bundle)
  kernels = {k.image_sha256 for p in plans for row in p.kernels for k in row}
  count = f"{len(kernels)} kernel{'s' * (len(kernels) != 1)}"
  head = f"{count} generated again, with the recorded text{derived}"
  try:
    left = check_images([(p.where, p.regenerated) for p in plans], bundle.cubins)
  except MirageError as error:
    if error.code != "COMPILER_MISSING":
      raise
    left = (f"images not compiled again: {error.detail}",)
  unseen = "; ".join(left)
  return SourceCheck(f"{head}; {unseen or 'the text compiles to the same images, byte for byte'}", unseen)


def _derived(
  original: Model | None, made: onnx.ModelProto, nodes: Sequence[CustomNode], bundle: Bundle
) -> str:
  """How many interfaces follow from the original, for the report.

  Raises:
      MirageError: SOURCE_MISMATCH where one that does is another.
  """
  if original is None:
    return ""
  try:
    file = ModelFile.read(original)
    loaded = load_model(apart_as_in(file.proto, made, step_sizes(made)), file.folder)
  except MirageError as error:  # onnxruntime may run what the importer refuses
    return f"; no interface was made from the original ({error.code})"
  return f"; {check_interfaces(loaded, made.graph, nodes, bundle).text}"


def _read(node: CustomNode, bundle: Bundle) -> PlanSources:
  where = f"node '{node.name}'"
  if node.plan >= min(len(bundle.plans), len(bundle.provenance)):
    raise MirageError("SOURCE_MISMATCH", f"{where}: the bundle has no plan {node.plan}")
  plan = parse_plan(bundle.plans[node.plan])
  made = regenerate(bundle.provenance[node.plan], where)
  suffix = node.domain.rpartition(".")[2]
  if suffix not in suffixes_that_run(made.target):
    why = f"its kernels are for {made.target.name}, its domain is {node.domain}"
    raise MirageError("SOURCE_MISMATCH", f"{where}: {why}")
  known = {k.source.name: k for k in made.kernels}
  table: list[tuple[KernelRecord, ...]] = []
  for variant in plan.variants:
    row: list[KernelRecord] = []
    for launch in variant.launches:
      kernel = known.get(launch.kernel)
      if kernel is None:
        why = f"its plan launches kernel {launch.kernel}, which its provenance lacks"
        raise MirageError("SOURCE_MISMATCH", f"{where}: {why}")
      image = bundle.cubins[launch.cubin] if launch.cubin < len(bundle.cubins) else b""
      if sha256(image) != kernel.image_sha256:
        why = f"kernel {launch.kernel}: the image is not the one its text compiled to"
        raise MirageError("SOURCE_MISMATCH", f"{where}: {why}")
      row.append(kernel)
    table.append(tuple(row))
  return PlanSources(where, plan, tuple(table), made)
