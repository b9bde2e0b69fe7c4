"""Kernels that differ in their tensors only, in one launch: the tiles of one behind those of the other.

Projections of one value are such kernels. One after the other, each ends with a round of tiles that does
not fill the GPU, and the next one waits for it; in one launch only the last round is short.
"""

from collections.abc import Mapping, Sequence, Set

from mirage_onnx.codegen.loads import parameters
from mirage_onnx.codegen.source import Writer
from mirage_onnx.errors import RejectionError
from mirage_onnx.ir.ugraph import Kernel, UGraph
from mirage_onnx.lower.sizes import identifier


def alike(graph: UGraph, first: Kernel, other: Kernel, extents: Mapping[str, int]) -> dict[str, str] | None:
  """The tensors of ``first`` -> those of ``other`` in their place, if all else about both is equal.

  None, too, where one reads or writes what the other writes.
  """
  axes: dict[str, str] = {}
  names: dict[str, str] = {}
  if len(first.ops) != len(other.ops) or len(first.saves) != len(other.saves):
    return None
  pairs = [(a.tensor, b.tensor) for a, b in zip(first.ops, other.ops, strict=True) if a.op == b.op == "load"]
  pairs += [(a.tensor, b.tensor) for a, b in zip(first.saves, other.saves, strict=True)]
  for a, b in pairs:
    if names.setdefault(b, a) != a or len(graph.tensor(a).axes) != len(graph.tensor(b).axes):
      return None
    for to, axis in zip(graph.tensor(a).axes, graph.tensor(b).axes, strict=True):
      if axes.setdefault(axis, to) != to or extents[axis] != extents[to]:
        return None
  whole = len(set(names.values())) == len(names) and len(set(axes.values())) == len(axes)
  same = all(graph.tensor(b).renamed(a, axes, names) == graph.tensor(a) for b, a in names.items())
  if not whole or not same or other.renamed(first.name, axes, names) != first:
    return None
  written = {s.tensor for k in (first, other) for s in k.saves}
  apart = not written & {o.tensor for k in (first, other) for o in k.loads}
  return {a: b for b, a in names.items()} if apart and len(written) == 2 * len(first.saves) else None


class OneLaunch:
  """The kernels of a launch, the first of which its text is of.

  ``args``, ``given``: as of ``parameters``, those of all. ``tiles``: of one kernel. ``names``: of each of the
  others, the tensors in the place of those of the first.
  """

  def __init__(
    self, graph: UGraph, kernel: Kernel, others: Sequence[Kernel], extents: Mapping[str, int], tiles: int,
    shared: Set[str] = frozenset(),
  ) -> None:  # fmt: skip
    """As said.

    Raises:
        RejectionError: LAYOUT, they are not alike.
    """
    self.tiles, self.count = tiles, 1 + len(others)
    names = self.names = [alike(graph, kernel, other, extents) for other in others]
    pairs = (alike(graph, a, b, extents) for i, a in enumerate(others) for b in others[i + 1 :])
    if None in names or None in pairs:
      raise RejectionError("LAYOUT", f"{kernel.name} and those beside it differ in more than their tensors")
    self._chosen: list[tuple[str, str, list[str]]] = []
    args, given = parameters(graph, kernel, extents, shared)
    if not others:
      self.args, self.given = [*args], given
      return
    self.args, self.given = list[str](), list[str]()
    for name, text in zip(args, given, strict=True):
      own = [name, *(found.get(name, name) for found in names if found is not None)]
      if len({*own}) == 1:
        self.args.append(name)
        self.given.append(text)
        continue
      mine = f"g_{identifier(name)}"
      kind = text.removesuffix(mine).replace(" __restrict__", "").rstrip()
      each = [f"g_{identifier(n)}_{part}" for part, n in enumerate(own)]
      self.args += own
      self.given += [f"{text.removesuffix(mine)}{n}" for n in each]
      self._chosen.append((kind, mine, each))

  def each(self, tensor: str) -> list[str]:
    """The tensors in the place of one of the first kernel, its own first."""
    return [tensor, *(found.get(tensor, tensor) for found in self.names if found is not None)]

  def choose_one(self, writer: Writer, kind: str, name: str, each: Sequence[str]) -> None:
    """Writes the one of ``each`` kernel that the part has; behind ``choose``."""
    *front, last = each
    value = "".join(f"part == {i} ? {n} : " for i, n in enumerate(front))
    writer.line(f"{kind} {name} = {value}{last};")

  def choose(self, writer: Writer, tile: str) -> str:
    """Writes whose tile of all tiles number ``tile`` is, and what it reads and writes; its number there."""
    if self.count == 1:
      return tile
    writer.line(f"const int part = {tile} / {self.tiles};")
    for kind, name, each in self._chosen:
      self.choose_one(writer, kind, name, each)
    writer.line(f"const int own = {tile} % {self.tiles};")
    return "own"
