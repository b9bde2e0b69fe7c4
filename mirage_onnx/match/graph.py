"""What the enumeration of cuts asks of a program's nodes: what may be inside a region, what are weights.

A *move* is a node that computes nothing (it reshapes, transposes, repeats, takes parts); a *view* a
move that leaves every element where it is in memory.
"""

from math import prod

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.program import Node, Program, Step, symbols_of
from mirage_onnx.match.sinking import SLICING

#: Steps that compute nothing: no cut is better for having more of them.
LAYOUT = ("transpose", "reshape", "expand", *SLICING)
#: Of what one instruction reads at once.
VECTOR_BYTES = 16
#: Size of a dimension that only a run knows, where cuts are compared.
ASSUMED = 16
#: From so many rows on a product with a weight is limited by arithmetic, where libraries are good.
FEW_ROWS = 64


class Graph:
  """A program with its edges and reasons, computed once."""

  def __init__(self, program: Program) -> None:
    self.program = program
    self.outputs = frozenset(program.outputs)
    self.consumers = program.consumers()
    self.reads = {n.name: n.operands for n in program.nodes}
    self.node = {n.name: n for n in program.nodes}
    self.order = {n.name: i for i, n in enumerate(program.nodes)}
    self.producer = {o: n for n in program.nodes for o in n.outputs if o}
    self.makers = {o: n.name for o, n in self.producer.items()}
    self._moves = {n.name for n in program.nodes if n.steps and all(s.op in LAYOUT for s in n.steps)}
    self._widen = {n.name for n in program.nodes if any(s.op == "stored" for s in n.steps)}
    self._contracting = {n.name for n in program.nodes if any(s.op == "matmul" for s in n.steps)}
    self._contractions = {n.name: sum(s.op == "matmul" for s in n.steps) for n in program.nodes}
    self._depths = {n.name: _depth(n) for n in program.nodes}
    self._elements: dict[str, int] = {}
    self._own: dict[str, dict[str, bool]] = {}
    self._moved, self._picked = self._moved_and_picked()
    self.reasons = {n.name: self._reason(n) for n in program.nodes}
    #: Nodes that contract, and those of them whose every contraction has a weight.
    self.contracting = frozenset(n for n, count in self._contractions.items() if count)
    self.contracting_weights = frozenset(n for n in self.contracting if self.contracts_weight(n))
    #: Parts of operators whose products nobody computes twice: they are no more than ONNX Runtime's own.
    self.with_readers = frozenset(n.name for n in program.nodes if n.with_reader)
    self._views = {n.name for n in program.nodes if n.steps and all(map(_is_view, n.steps))}
    self._yielding = self._yielding_weights()
    #: Nodes that pick rows of a table that are no weights: activations.
    self.embeddings = frozenset(n.name for n in program.nodes if self._embeds(n))
    self._assumed = dict.fromkeys(program.primes.values(), ASSUMED)

  def _reason(self, node: Node) -> Rejection | None:
    """Why the node can be in no region, or None."""
    if node.barrier is not None:
      return node.barrier
    packed = {i for s in node.steps if s.op == "stored" for i in s.inputs}
    for name in (*self.reads[node.name], *node.outputs):
      tensor = self.program.tensors.get(name)
      if not name or name in self.program.constants or name in packed:
        continue
      dtype = tensor.dtype if tensor else None
      if dtype is not None and dtype.is_byte and _is_only_cast(node, name):
        continue
      if dtype is None or not dtype.is_computed:
        return Rejection("DTYPE", f"{name} is not a float tensor", (node.name,))
      if self.program.numbers(name) is None:
        return Rejection("DYNAMIC_DIM", f"{name} has a dynamic shape", (node.name,))
    return None

  def is_ragged(self, name: str) -> bool:
    """Whether rows of a tensor begin between 16 bytes, so that it is read element by element."""
    tensor, numbers = self.program.tensors.get(name), self.program.numbers(name)
    if tensor is None or tensor.dtype is None or not numbers:
      return False
    in_a_run = symbols_of(numbers[-1], self.program.primes)[1]
    return not in_a_run and bool(numbers[-1] * tensor.dtype.size_bytes % VECTOR_BYTES)

  def contracts_weight(self, name: str) -> bool:
    """Whether every contraction of the node has an operand that no run changes."""
    node = self.node[name]
    return all(
      any(isinstance(i, str) and self._is_constant(node, i) for i in s.inputs)
      for s in node.steps
      if s.op == "matmul"
    )

  def streams(self, name: str) -> bool:
    """Whether all that takes time is to read a weight: few rows are multiplied by it.

    Or whether it is widened: the others' products of many rows write it out as 16 bits first.
    """
    if not self._contractions[name] or not self.contracts_weight(name):
      return False
    if any(s.op == "stored" for s in self.node[name].steps):
      return True
    out = self.node[name].outputs[0]
    columns = (self.program.numbers(out) or (1,))[-1]
    return self.elements(out) // self.program.size(columns, self._assumed) < FEW_ROWS

  def _is_constant(self, node: Node, name: str) -> bool:
    """A weight, or computed from one inside the node (a transpose)."""
    if name in self.program.weights:
      return True
    own = self._made_of_weights(node)
    return own.get(name, name in self._moved and name not in node.outputs)

  def _made_of_weights(self, node: Node) -> dict[str, bool]:
    """Of every result of the node's steps, whether it is made of nothing but weights and numbers."""
    if node.name not in self._own:
      own = self._own.setdefault(node.name, {})
      weights = self.program.weights
      for s in node.steps:
        own[s.output.name] = all(
          not isinstance(i, str) or i in weights or own.get(i, i in self._moved) for i in s.inputs
        )
    return self._own[node.name]

  def _moved_and_picked(self) -> tuple[set[str], set[str]]:
    """Tensors that are moved weights, and those that are rows which a run picks, moved or not.

    One pass over the nodes: asked of one tensor after the other, it would follow every path.
    """
    moved, picked = set[str](), set[str]()
    for node in self.program.nodes:
      if node.barrier is not None or node.name not in self._moves | (self._widen - self._contracting):
        continue
      operands = self.reads[node.name]
      if all(i in self.program.weights or i in moved for i in operands if not self.picks(node, i)):
        moved.update(node.outputs)
      if any(s.op == "gather" for s in node.steps) or any(i in picked for i in operands):
        picked.update(node.outputs)
    return moved, picked

  def is_moved_weight(self, name: str) -> bool:
    """Whether nothing but weights is here, in another order, beside each other, or rows that a run picks."""
    return name in self._moved

  def is_read_as_weight(self, name: str, reader: Node) -> bool:
    """Whether it is a moved weight and, of rows that a run picks, the one operand of a product.

    Rows that are no operand of one, or beside a weight, are activations: the embeddings of tokens.
    """
    return self._reads_weight(name, reader, self._yielding)

  def _reads_weight(self, name: str, reader: Node, yielding: set[str]) -> bool:
    if name not in self._moved or name not in self._picked:
      return name in self._moved
    if self.contractions(reader.name):
      operands = self.reads[reader.name]
      return not any(self._is_constant(reader, i) for i in operands if i not in self._picked)
    return reader.name in yielding

  def _yielding_weights(self) -> set[str]:
    """Moves of whose results one is read as a weight: in one pass from the outputs up."""
    found = set[str]()
    for node in reversed(self.program.nodes):
      if node.name in self._moves:
        ends = ((o, self.node[r]) for o in node.outputs for r in self.consumers.get(o, ()))
        if any(self._reads_weight(o, reader, found) for o, reader in ends):
          found.add(node.name)
    return found

  def _embeds(self, node: Node) -> bool:
    return any(s.op == "gather" for s in node.steps) and not self._yields_weight(node)

  def _yields_weight(self, node: Node) -> bool:
    ends = ((o, self.node[r]) for o in node.outputs for r in self.consumers.get(o, ()))
    return any(self.is_read_as_weight(*end) for end in ends)

  def picks(self, node: Node, name: str) -> bool:
    """Whether the node does not compute with its operand, which says what rows it has of another."""
    return any(s.op == "gather" and s.inputs[1] == name for s in node.steps)

  def is_table(self, node: Node, name: str) -> bool:
    """Whether the node has rows of its operand, which a run picks: kernels find them in memory."""
    return any(s.op == "gather" and s.inputs[0] == name for s in node.steps)

  def contractions(self, name: str) -> int:
    return self._contractions[name]

  def depth(self, name: str) -> int:
    """Most reductions and contractions of a node that feed each other."""
    return self._depths[name]

  def reduces(self, name: str) -> bool:
    return any(s.op in ("sum", "mean", "rmax") for s in self.node[name].steps)

  def activations(self, node: Node) -> tuple[str, ...]:
    program = self.program
    return tuple(
      dict.fromkeys(
        i for i in self.reads[node.name]
        if i not in program.weights and i not in program.constants
      )
    )  # fmt: skip

  def inside(self, tensor: str) -> Node | None:
    """The node that computes ``tensor``, if a region may contain it."""
    node = self.producer.get(tensor)
    return node if node is not None and self.reasons[node.name] is None else None

  @property
  def moves(self) -> set[str]:
    """Nodes that compute nothing, but move or repeat elements."""
    return self._moves

  @property
  def views(self) -> set[str]:
    """Nodes that move nothing in memory: only its shape is new."""
    return self._views

  def elements(self, tensor: str) -> int:
    """As if all that only a run knows were ``ASSUMED``."""
    if tensor not in self._elements:
      sizes = (self.program.size(n, self._assumed) for n in self.program.numbers(tensor) or ())
      self._elements[tensor] = prod(sizes)
    return self._elements[tensor]


def _depth(node: Node) -> int:
  found: dict[object, int] = {}
  for s in node.steps:
    own = s.op in ("matmul", "sum", "mean", "rmax")
    found[s.output.name] = own + max((found.get(i, 0) for i in s.inputs), default=0)
  return max(found.values(), default=0)


def _is_view(step: Step) -> bool:
  return step.op == "reshape" or (step.op == "transpose" and not permutes(step))


def permutes(step: Step) -> bool:
  """Whether a transposition moves more than dimensions of extent 1."""
  assert isinstance(step.attr, tuple)
  kept = [i for i, n in zip(step.attr, step.output.shape or (), strict=True) if n != 1]
  return kept != sorted(kept)


def _is_only_cast(node: Node, name: str) -> bool:
  """Whether a node reads a tensor, and makes nothing of it but floats."""
  users = [s for s in node.steps if name in s.inputs]
  return bool(users) and all(s.op == "cast" for s in users)
