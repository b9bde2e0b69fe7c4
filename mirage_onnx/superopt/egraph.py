"""A small e-graph over terms: classes of equal values, each with all its known spellings.

A node is ``(op, attr, children)`` with children as class ids; ``add`` and ``mul`` are flat with
sorted children, so commutativity and associativity need no rules. ``Term`` (``ir/term.py``) is the
normal form nodes start from; ``axioms.py`` holds the rules that add spellings.
"""

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from mirage_onnx.ir.term import ADD, COMMUTATIVE, MAXR, MUL, REDUCTIONS, SUM, Attr, Term
from mirage_onnx.ir.ugraph import part_axis

#: What the axioms add to the operations of terms. ``psum[k](x)`` and ``pmax[k](x)`` reduce each
#: tile of k that a block of some grid has: k becomes the part axis. ``run[k](m)`` is the running
#: maximum of the iterations of a loop over k so far, where m is the maximum of all. ``scaled[k](x,
#: m)`` is the sum over k of x, whose terms hold run[k](m), rescaled as the maximum runs up to m.
#: ``copy[o1](x)`` is output o1 where that is x itself, which another tensor holds.
PSUM, PMAX, RUN, SCALED, PSCALED = "psum", "pmax", "run", "scaled", "pscaled"
COPY = "copy"
#: Part reductions, and what each does inside a block.
PARTS = {PSUM: SUM, PMAX: MAXR, PSCALED: SCALED}
#: All nodes that take an axis away from their first argument.
HEAVY = frozenset({*REDUCTIONS, SCALED, *PARTS})


def part_of(axis: str) -> str:
  """The part axis of ``axis``, before the kernel that makes the parts has its name."""
  return part_axis(axis, "")


def is_part(axis: str) -> bool:
  """Whether ``part_of`` made the axis (named after no kernel yet)."""
  return axis.endswith("/")


@dataclass(frozen=True, slots=True, order=True)
class ENode:
  """One spelling of a value: an operation over classes."""

  op: str
  children: tuple[int, ...]
  attr: Attr = None

  @property
  def over(self) -> tuple[str, ...]:
    """The axes that a reduction takes away; those that ``run`` goes over."""
    return self.attr if isinstance(self.attr, tuple) else ()


class EGraph:
  """Union-find over classes with congruence; deterministic for a given order of insertions."""

  def __init__(self) -> None:
    self._parent: list[int] = []
    self._axes: list[tuple[str, ...]] = []
    self._nodes: list[dict[ENode, None]] = []
    self._users: list[dict[ENode, int]] = []
    self._memo: dict[ENode, int] = {}
    self._dirty: list[int] = []

  def __len__(self) -> int:
    return sum(1 for i in range(len(self._parent)) if self._parent[i] == i)

  @property
  def size(self) -> int:
    """Number of distinct nodes."""
    return len(self._memo)

  def find(self, c: int) -> int:
    """The class that ``c`` is in now."""
    while self._parent[c] != c:
      self._parent[c] = self._parent[self._parent[c]]
      c = self._parent[c]
    return c

  def axes(self, c: int) -> tuple[str, ...]:
    """The axes that the class varies over, sorted."""
    return self._axes[self.find(c)]

  def nodes(self, c: int) -> tuple[ENode, ...]:
    """All known spellings of the class, in the order they were found."""
    return tuple(self._nodes[self.find(c)])

  def classes(self) -> Iterator[int]:
    """All classes, each once."""
    return (i for i in range(len(self._parent)) if self._parent[i] == i)

  def canonical(self, node: ENode) -> ENode:
    """The node over present classes, commutative arguments sorted."""
    children = tuple(self.find(c) for c in node.children)
    if node.op in COMMUTATIVE:
      children = tuple(sorted(children))
    return ENode(node.op, children, node.attr)

  def _axes_of(self, node: ENode, own: tuple[str, ...] | None) -> tuple[str, ...]:
    if own is not None:
      return own
    found = {a for c in node.children for a in self.axes(c)}
    if node.op in HEAVY:
      found -= set(node.over)
    if node.op in PARTS:
      found |= {part_of(a) for a in node.over}
    return tuple(sorted(found))

  def insert(self, node: ENode, axes: tuple[str, ...] | None = None) -> int:
    """The class of ``node``, a new one if it is unknown.

    A product of products is flat, as long as the inner one has no other spelling; so is a sum.
    """
    node = self.canonical(self._flat(node) if node.op in (MUL, ADD) else node)
    known = self._memo.get(node)
    if known is not None:
      return self.find(known)
    c = len(self._parent)
    self._parent.append(c)
    self._axes.append(self._axes_of(node, axes))
    self._nodes.append({node: None})
    self._users.append({})
    self._memo[node] = c
    for child in node.children:
      self._users[child][node] = c
    return c

  def _flat(self, node: ENode) -> ENode:
    children: list[int] = []
    for c in node.children:
      own = self._nodes[self.find(c)]
      inner = next(iter(own))
      children += inner.children if len(own) == 1 and inner.op == node.op else (c,)
    return ENode(node.op, tuple(children), node.attr)

  def insert_term(self, t: Term) -> int:
    """The class of a term, with classes of all its subterms."""
    memo: dict[Term, int] = {}

    def visit(u: Term) -> int:
      if u not in memo:
        children = tuple(visit(a) for a in u.args)
        memo[u] = self.insert(ENode(u.op, children, u.attr), u.axes)
      return memo[u]

    return visit(t)

  def product(self, children: Iterable[int]) -> int:
    """The class of the product of classes (the class itself for one factor)."""
    return self._nary(MUL, children)

  def total(self, children: Iterable[int]) -> int:
    """The class of the sum of classes."""
    return self._nary(ADD, children)

  def find_node(self, node: ENode) -> int | None:
    """The class of ``node`` if it is known; nothing is inserted."""
    known = self._memo.get(self.canonical(node))
    return None if known is None else self.find(known)

  def _nary(self, op: str, children: Iterable[int]) -> int:
    ids = tuple(sorted(map(self.find, children)))
    return ids[0] if len(ids) == 1 else self.insert(ENode(op, ids))

  def union(self, a: int, b: int) -> bool:
    """Declare two classes equal; congruent users are merged by ``rebuild``."""
    a, b = self.find(a), self.find(b)
    if a == b:
      return False
    if self._axes[a] != self._axes[b]:
      raise AssertionError(f"union of classes over {self._axes[a]} and {self._axes[b]}")
    keep, drop = min(a, b), max(a, b)
    self._parent[drop] = keep
    self._nodes[keep].update(self._nodes[drop])
    self._users[keep].update(self._users[drop])
    self._dirty.append(keep)
    return True

  def rebuild(self) -> None:
    """Restore congruence: equal nodes over merged classes are in one class."""
    while self._dirty:
      todo, self._dirty = sorted(set(map(self.find, self._dirty))), []
      for c in todo:
        for node, owner in list(self._users[self.find(c)].items()):
          fresh = self.canonical(node)
          known = self._memo.get(fresh)
          if known is not None:
            self.union(known, owner)
          self._memo[fresh] = self.find(owner)
          self._nodes[self.find(owner)].pop(node, None)
          self._nodes[self.find(owner)][fresh] = None
    for c in self.classes():
      self._nodes[c] = dict.fromkeys(sorted({self.canonical(n) for n in self._nodes[c]}, key=repr))


def depths(
  g: EGraph, below: Callable[[ENode], Iterable[int] | None] = lambda n: n.children
) -> dict[int, int]:
  """The least depth of any spelling of each class; without one, the class is left out.

  ``below``: the children that a node is above, or None for a node that is not to be used.
  """
  depth: dict[int, int] = {}
  level = 0
  while True:
    found = [
      c
      for c in g.classes()
      if c not in depth
      and any((needs := below(n)) is not None and all(g.find(k) in depth for k in needs) for n in g.nodes(c))
    ]
    if not found:
      return depth
    depth.update(dict.fromkeys(found, level))
    level += 1


def reachable(g: EGraph, roots: Iterable[int]) -> set[int]:
  """All classes that some spelling of ``roots`` mentions."""
  seen: set[int] = set()
  todo = list(roots)
  while todo:
    c = g.find(todo.pop())
    if c not in seen:
      seen.add(c)
      todo += [k for n in g.nodes(c) for k in n.children]
  return seen


def reduced_axes(g: EGraph, roots: Iterable[int]) -> set[str]:
  """The axes that some spelling of ``roots`` reduces."""
  found: set[str] = set()
  for c in reachable(g, roots):
    for n in g.nodes(c):
      if n.op in HEAVY:
        found.update(n.over)
  return found
