"""Named axes of a draft: which factors become one axis, and the reference over these axes.

Two adjacent factors a b are one axis where nothing tells them apart: every device tensor has both,
b right after a, and in every kernel either the grid or the loop indexes a and b is whole in the
tile (then b is the tile size), or both are whole and always reduced together. A factor that the
loop indexes stays apart from b where an accumulator adds up tiles over b, because that adds
elements at different places of the axis; a mean over b alone keeps it apart too.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import pairwise

from mirage_onnx.formats.mirage.draft import Draft, DraftKernel, unsupported
from mirage_onnx.formats.mirage.factors import Dim
from mirage_onnx.ir import term as t
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.term import Term

LOOP = "loop"
#: Factor -> the index of a grid dimension, or LOOP; what is whole in the tile is left out.
Roles = dict[int, int | str]


@dataclass(frozen=True, slots=True)
class Axes:
  """``name``: factor -> axis; ``members``: axis -> its factors, slowest first.

  ``roles`` has an entry per kernel. The factors of a loop that cuts no input have no name.
  """

  name: dict[int, str]
  members: dict[str, Dim]
  roles: tuple[Roles, ...]

  def of(self, leaves: Iterable[int]) -> tuple[str, ...]:
    """The axes of factors, in order, each once."""
    return tuple(dict.fromkeys(self.name[f] for f in leaves))


def name_factors(draft: Draft) -> Axes:
  """Axes of all factors.

  Raises:
      RejectionError: SAVED_UNSUPPORTED where one factor would be two things at once.
  """
  roles = tuple(_roles(draft, k) for k in draft.kernels)
  for kernel, by in zip(draft.kernels, roles, strict=True):
    _check_tiles(draft, kernel, by)
  leaves = draft.factors.leaves
  dims = [leaves(d) for tensor in draft.tensors.values() for d in tensor.dims]
  for tensor in draft.tensors.values():
    _distinct(sum(map(leaves, tensor.dims), ()), f"tensor {tensor.name}")
  whole = {axis: leaves(d) for axis, d in draft.axes.items()}
  for axis, found in whole.items():
    _distinct(found, f"axis {axis}")
  lists = [*dims, *whole.values()]
  joined = {a for a, b in _neighbours(lists) if _together(draft, roles, a, b)}
  name: dict[int, str] = {}
  members: dict[str, Dim] = {}
  for axis, found in whole.items():
    groups: list[list[int]] = []
    for f in found:
      if groups and groups[-1][-1] in joined:
        groups[-1].append(f)
      else:
        groups.append([f])
    for k, group in enumerate(groups):
      label = axis if len(groups) == 1 else f"{axis}_{k}"
      if group[0] not in name:
        members[label] = tuple(group)
        name |= dict.fromkeys(group, label)
  for kernel, by in zip(draft.kernels, roles, strict=True):
    if any(f not in name and role != LOOP for f, role in by.items()):
      raise unsupported(f"{kernel.name}: a grid dimension cuts no input")
  return Axes(name, members, roles)


def _distinct(leaves: Dim, where: str) -> None:
  if len(set(leaves)) != len(leaves):
    raise unsupported(f"{where} would have one axis twice")


def _roles(draft: Draft, kernel: DraftKernel) -> Roles:
  roles: Roles = {}
  indices: tuple[tuple[int | str, Dim], ...] = (*enumerate(kernel.grid), (LOOP, kernel.loop))
  for role, dim in indices:
    for f in draft.factors.leaves(dim):
      if f in roles:
        raise unsupported(f"{kernel.name}: two indices (grid, loop) run over one axis")
      roles[f] = role
  return roles


def _check_tiles(draft: Draft, kernel: DraftKernel, roles: Roles) -> None:
  """No value has a factor twice, or whole where the grid or the loop indexes it elsewhere."""
  for i, v in enumerate(kernel.values):
    found = sum(map(draft.factors.leaves, v.dims), ())
    _distinct(found, f"{kernel.name}, value {i} ({v.op})")
    if any(f in roles for f in found):
      raise unsupported(f"{kernel.name}: an axis is cut in one operand and whole in another")


def _neighbours(lists: list[Dim]) -> list[tuple[int, int]]:
  """Pairs that every list has side by side in this order, where it has one of them."""
  after: dict[int, set[int | None]] = {}
  before: dict[int, set[int | None]] = {}
  for found in lists:
    for a, b in pairwise((None, *found, None)):
      if a is not None:
        after.setdefault(a, set()).add(b)
      if b is not None:
        before.setdefault(b, set()).add(a)
  return [
    (a, b)
    for a, following in after.items()
    if len(following) == 1 and (b := next(iter(following))) is not None and before[b] == {a}
  ]


def _together(draft: Draft, roles: tuple[Roles, ...], a: int, b: int) -> bool:
  return all(_together_in(draft, kernel, by, a, b) for kernel, by in zip(draft.kernels, roles, strict=True))


def _together_in(draft: Draft, kernel: DraftKernel, roles: Roles, a: int, b: int) -> bool:
  first, second = roles.get(a), roles.get(b)
  if second is not None and (second == LOOP or first != second):
    return False
  looped = first == LOOP
  if looped and len(draft.factors.leaves(kernel.loop)) > 1:
    return False
  for v in kernel.values:
    over = draft.factors.leaves(v.over)
    apart = (a in over) != (b in over)
    if apart and (v.op == "extent" or first is None):
      return False
    if looped and v.op == "acc" and any(b in draft.factors.leaves(d) for d in v.dims):
      return False
  return True


def refine(region: Region, draft: Draft, axes: Axes) -> Region:
  """``region`` over the axes of the draft. It has no steps: these are positional.

  Raises:
      RejectionError: SAVED_UNSUPPORTED where the graph ties two axes that a value of the
          reference varies over, so that only a part of the reference would be left.
  """
  extent = {x: draft.factors.size(m) for x, m in axes.members.items()}
  split = {x: axes.of(draft.factors.leaves(d)) for x, d in draft.axes.items()}

  def renamed(old: Iterable[str]) -> tuple[str, ...]:
    return tuple(n for a in old for n in split[a])

  def tensor(x: RegionTensor) -> RegionTensor:
    return RegionTensor(x.name, x.dtype, renamed(x.axes), x.tensor, x.is_weight)

  memo: dict[Term, Term] = {}
  for node in t.walk(region.terms):
    names = renamed(node.attr if node.op == t.EXTENT else node.axes)  # type: ignore[arg-type]
    if len(set(names)) != len(names):
      raise unsupported("the graph ties axes that are different in the reference")
    memo[node] = _renamed(node, tuple(memo[a] for a in node.args), renamed)
  return Region(
    nodes=region.nodes,
    steps=(),
    constants=region.constants,
    inputs=tuple(map(tensor, region.inputs)),
    outputs=tuple(map(tensor, region.outputs)),
    terms=tuple(memo[x] for x in region.terms),
    extents=extent,
  )


def _renamed(node: Term, args: tuple[Term, ...], renamed: Callable[[Iterable[str]], tuple[str, ...]]) -> Term:
  if node.op == t.INPUT:
    return t.input_(str(node.attr), renamed(node.axes))
  if isinstance(node.attr, tuple):
    axes = renamed(node.attr)
    return t.extent(axes) if node.op == t.EXTENT else t.reduce_(node.op, axes, args[0])
  return t.rebuild(node, args)
