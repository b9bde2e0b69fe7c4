"""Names that a file gives to the dimensions of what its nodes compute.

Inference keeps such names, also where it would find that a dimension is one of an input: tools that
ran inference before have called it ``unk__0``. So it runs without them, and a name of the file is
taken only where inference has nothing but a new one.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace

from onnx import ValueInfoProto

from mirage_onnx.ir.program import Dim, Tensor

#: How onnx calls what it does not know.
_NEW = "unk__"


def without_names(values: Iterable[ValueInfoProto]) -> list[ValueInfoProto]:
  """Copies whose dimensions have sizes, but no names."""
  found = []
  for value in values:
    copy = ValueInfoProto()
    copy.CopyFrom(value)
    for d in copy.type.tensor_type.shape.dim:
      if d.HasField("dim_param"):
        d.ClearField("dim_param")
    found.append(copy)
  return found


def typed(values: Iterable[ValueInfoProto]) -> list[ValueInfoProto]:
  """Those that say a type: of one that says none, inference would learn none."""
  return [v for v in values if v.type.WhichOneof("value") and _says_elements(v)]


def _says_elements(value: ValueInfoProto) -> bool:
  return not value.type.HasField("tensor_type") or value.type.tensor_type.elem_type != 0


def with_names(
  tensors: Mapping[str, Tensor], declared: Iterable[ValueInfoProto], kept: frozenset[str]
) -> dict[str, Tensor]:
  """``tensors`` with the names of ``declared`` for new ones; those in ``kept`` are not new."""
  names: dict[str, str] = {}
  every: set[str] = set(kept)
  for value in declared:
    t = tensors.get(value.name)
    given = value.type.tensor_type.shape.dim
    every |= {d.dim_param for d in given}
    if t is None or t.shape is None or len(t.shape) != len(given):
      continue
    for axis, (have, want) in enumerate(zip(t.shape, given, strict=True)):
      if want.dim_param and isinstance(have, str) and _is_new(t, axis, have, kept):
        names.setdefault(have, want.dim_param)

  def renamed(t: Tensor, axis: int, d: Dim) -> Dim:
    if isinstance(d, int) or not _is_new(t, axis, d, kept):
      return d
    # Never by chance the name that the file gives to something else.
    return names.get(d, f"{d}'" if d in every else d)

  return {
    name: t
    if t.shape is None or t.is_static
    else replace(t, shape=tuple(renamed(t, axis, d) for axis, d in enumerate(t.shape)))
    for name, t in tensors.items()
  }


def _is_new(t: Tensor, axis: int, name: str, kept: frozenset[str]) -> bool:
  return name not in kept and (name.startswith(_NEW) or name == f"{t.name}:{axis}")
