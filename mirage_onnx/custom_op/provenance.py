"""What a bundle says of the origin of its kernels, and the text generated from it again.

A record of a plan holds the region, the µGraph and its numbers, the generator's version, the target
and the plan's interface: everything that its kernels' text and its lines are a function of. Text
never comes from a model: it is generated here, by the present generator, and must have the SHA-256
that was recorded when the kernel was compiled; the image must have the SHA-256 recorded beside it.
Names of a record do reach the text, so they must be identifiers: a µGraph cannot smuggle text in.
These hashes tie the image to the text only as far as the record is believed; ``check_images``
compiles again (docs/decisions.md, "A kernel is tied to its text").
"""

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from mirage_onnx.codegen.source import KernelSource
from mirage_onnx.codegen.whole_text import GENERATOR_VERSION
from mirage_onnx.compiler.candidates import Compiled, emit_candidate
from mirage_onnx.compiler.compile import compile_cubin
from mirage_onnx.custom_op.interface import Interface, make_plan
from mirage_onnx.custom_op.plan import Plan
from mirage_onnx.errors import MirageError, RejectionError
from mirage_onnx.ir import (
  Candidate,
  KernelParams,
  Region,
  UGraph,
  parse_ugraph,
  print_ugraph,
  ugraph_extents,
)
from mirage_onnx.nvrtc_choice import chosen_version
from mirage_onnx.target import Target, get_target

_IDENTIFIER = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,63}\Z")
#: What reading a record that was tampered with may raise.
_UNREADABLE = (
  LookupError, TypeError, ValueError, AttributeError, StopIteration, ArithmeticError,
  AssertionError, RuntimeError, MirageError,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class KernelRecord:
  """A kernel of a bundle: its text, bytes of each tensor argument, and the image's SHA-256.

  The bytes are those of one element of every axis in ``arg_sizes``, which a launch counts.
  """

  source: KernelSource
  arg_bytes: tuple[int, ...]
  image_sha256: str
  arg_sizes: tuple[tuple[str, ...], ...]
  arg_dtypes: tuple[str, ...]

  def bytes_at(self, sizes: Mapping[str, int]) -> tuple[int, ...]:
    """Bytes of each tensor argument of a launch with these sizes."""
    each = zip(self.arg_bytes, self.arg_sizes, strict=True)
    return tuple(size * prod(sizes[a] for a in axes) for size, axes in each)


@dataclass(frozen=True, slots=True)
class Regenerated:
  """The kernels of one plan, the NVRTC that compiled them, and the plan (kernel k is in image k)."""

  kernels: tuple[KernelRecord, ...]
  target: Target
  nvrtc: str
  plan: Plan


def record(region: Region, compiled: Compiled, target: Target, interface: Interface) -> dict[str, object]:
  """The provenance of one plan."""
  return {
    "region": region.text,
    "ugraph": print_ugraph(compiled.candidate.ugraph),
    "params": [p.to_text() for p in compiled.candidate.params],
    "generator": GENERATOR_VERSION,
    "nvrtc": chosen_version(),
    "target": target.name,
    "interface": interface.to_record(),
    "kernels": [
      {"name": s.name, "sha256": sha256(s.text.encode()), "image_sha256": sha256(c.image)}
      for s, c in zip(compiled.sources, compiled.cubins, strict=True)
    ],
  }


def regenerate(record: Mapping[str, Any], where: str) -> Regenerated:
  """The kernels of a plan, generated again. ``where`` names the node, for messages.

  Raises:
      MirageError: SOURCE_MISMATCH, naming the kernel where that is known.
  """
  try:
    target, kernels = get_target(record["target"]), record["kernels"]
    recorded = [(k["name"], k["sha256"], k["image_sha256"]) for k in kernels]
    extents, runtime = recorded_extents(record["region"])
    graph = parse_ugraph(record["ugraph"])
    _check_names(graph)
    params = tuple(KernelParams.from_text(text) for text in record["params"])
    prefix = f"mugraph_{sha256(record['region'].encode())[:16]}"
    sources = emit_candidate(Candidate(graph, params), extents, target, prefix, runtime)
    sizes = _tensor_bytes(graph, params, {**extents, **dict.fromkeys(runtime, 1)})
    axes = {t.name: tuple(a for a in t.counted if a in runtime) for t in graph.tensors}
    dtypes = {t.name: t.dtype.in_memory.value for t in graph.tensors}
    names = [s.name for s in sources]
    interface = Interface.from_record(record["interface"])
    plan = make_plan(interface, graph, ugraph_extents(graph, params, extents), sources, range(len(sources)))
    plan.to_text()
  except RejectionError as error:
    why = f"the generator refuses the µGraph of {_kernels(record)} ({error.rejection})"
    raise MirageError("SOURCE_MISMATCH", f"{where}: {why}") from error
  except _UNREADABLE as error:
    why = f"the provenance of {_kernels(record)} cannot be read ({_one_line(error)})"
    raise MirageError("SOURCE_MISMATCH", f"{where}: {why}") from error
  if names != [name for name, _, _ in recorded]:
    why = f"its provenance makes the kernels {names}, it lists {[n for n, _, _ in recorded]}"
    raise MirageError("SOURCE_MISMATCH", f"{where}: {why}")
  for source, (name, digest, _) in zip(sources, recorded, strict=True):
    if sha256(source.text.encode()) != digest:
      raise MirageError("SOURCE_MISMATCH", f"{where}: kernel {name}: {_differs(record)}")
  return Regenerated(
    tuple(
      KernelRecord(
        source=s,
        arg_bytes=tuple(sizes[a] for a in s.args),
        image_sha256=image,
        arg_sizes=tuple(axes[a] for a in s.args),
        arg_dtypes=tuple(dtypes[a] for a in s.args),
      )
      for s, (_, _, image) in zip(sources, recorded, strict=True)
    ),
    target,
    str(record.get("nvrtc", "unknown")),
    plan,
  )


def check_images(plans: Iterable[tuple[str, Regenerated]], images: Sequence[bytes]) -> tuple[str, ...]:
  """Compile each kernel again and compare bytes; returns why kernels could not be compared.

  ``plans``: (node, its kernels). Kernels that another NVRTC compiled are not compared.

  Raises:
      MirageError: SOURCE_MISMATCH where the bytes differ; COMPILER_MISSING.
  """
  here = chosen_version()
  stored = {sha256(image) for image in images}
  others: set[str] = set()
  done: set[str] = set()
  for where, plan in plans:
    if plan.nvrtc != here:
      others.add(plan.nvrtc)
      continue
    for kernel in plan.kernels:
      if kernel.image_sha256 in done:
        continue
      done.add(kernel.image_sha256)
      try:
        again = compile_cubin(kernel.source.text, plan.target, name=kernel.source.name)
      except RejectionError as error:
        why = f"its text does not compile ({error.rejection})"
      else:
        if sha256(again.image) == kernel.image_sha256 and kernel.image_sha256 in stored:
          continue
        why = "its text compiles to another image than the one in the bundle"
      raise MirageError("SOURCE_MISMATCH", f"{where}: kernel {kernel.source.name}: {why}")
  return tuple(
    f"kernels compiled by NVRTC {other} were not compiled again: here is {here} "
    "(that release of nvidia-cuda-nvrtc does)"
    for other in sorted(others)
  )


def sha256(data: bytes) -> str:
  """Hexadecimal digest."""
  return hashlib.sha256(data).hexdigest()


def _kernels(record: Mapping[str, Any]) -> str:
  """For a message, whatever the record holds."""
  listed = record.get("kernels")
  found = listed if isinstance(listed, list) else []
  names = [str(k.get("name")) for k in found if isinstance(k, dict)]
  return ", ".join(names) or "its kernels"


def _one_line(error: BaseException) -> str:
  return " ".join(f"{type(error).__name__}: {error}".split())


def _differs(record: Mapping[str, Any]) -> str:
  made = record.get("generator")
  if made != GENERATOR_VERSION:
    return f"it was generated by version {made} of the generator, this is {GENERATOR_VERSION}"
  return "the text generated from its µGraph is not the one that was compiled"


def recorded_extents(region: str) -> tuple[dict[str, int], tuple[str, ...]]:
  """The axes line of ``Region.text``, and the axes that only a launch counts."""
  lines = region.splitlines()
  words = lines[1].split(" ")
  if words[0] != "axes":
    raise ValueError(f"not the axes of a region: {words[0]!r}")
  extents = {axis: int(size) for axis, size in (w.split("=") for w in words[1:] if w)}
  runtime = [line.split(" ")[1].split(",") for line in lines if line.startswith("runtime ")]
  return extents, tuple(axis for axes in runtime for axis in axes)


def _check_names(graph: UGraph) -> None:
  tensors = [t.name for t in graph.tensors]
  over = [*(t.axes for t in graph.tensors), *(w.axes for t in graph.tensors for w in t.windows)]
  axes = [part for each in over for a in each for part in a.split("/")]
  for kernel in graph.kernels:
    around = [kernel.name, *kernel.grid, kernel.cluster or "_", kernel.loop or "_"]
    axes += [part for a in around for part in a.split("/")]
    for op in kernel.ops:
      axes += [part for a in (*op.axes, *op.reduced) for part in a.split("/")]
      tensors += [op.op, op.tensor or "_"]
  for name in (*tensors, *axes):
    if not _IDENTIFIER.match(name):
      raise ValueError(f"{name[:40]!r} is not an identifier")


def _tensor_bytes(
  graph: UGraph, params: Sequence[KernelParams], extents: Mapping[str, int]
) -> dict[str, int]:
  sizes = ugraph_extents(graph, params, extents)
  return {t.name: t.bytes(sizes) for t in graph.tensors}
