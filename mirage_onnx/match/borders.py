"""Where a region may end: borders that are natural, and chains of moves that no kernel is found across."""

from functools import cached_property

from mirage_onnx.ir.program import Node, Step
from mirage_onnx.match.contracted import contracts_apart
from mirage_onnx.match.graph import Graph, permutes

#: Most parts that a region beside their concatenation reads.
MANY_PARTS = 4


class Borders:
  """The borders that regions of a program may have, each looked for once.

  ``reductions``, ``rows_apart``: as of ``cuts.Limits``.
  """

  def __init__(self, graph: Graph, *, reductions: bool = False, rows_apart: bool = True) -> None:
    self.graph, self._reductions, self._rows_apart = graph, reductions, rows_apart
    self._natural: dict[str, bool] = {}

  def is_natural(self, tensor: str) -> bool:
    """Whether a region border may lie here: others read the value, or a new stage begins."""
    if tensor not in self._natural:
      self._natural[tensor] = not self.is_inseparable(tensor) and self._is_natural(tensor)
    return self._natural[tensor]

  def set_natural(self, tensor: str) -> None:
    """A border may lie here: what is on both sides of it is more than a region holds."""
    self._natural[tensor] = True

  def is_inseparable(self, tensor: str) -> bool:
    """Whether no region ends here: what makes the value and what reads it are parts of one operator.

    That one's kernel does what all of them do, so a region of some would break it up for little.
    """
    node = self.graph.producer.get(tensor)
    return node is not None and node.with_reader

  def _is_natural(self, tensor: str) -> bool:
    graph = self.graph
    node = graph.producer.get(tensor)
    readers = graph.consumers.get(tensor, ())
    if node is None or tensor in graph.outputs:
      return True
    if any(graph.reasons[r] is not None or graph.contractions(r) for r in readers):
      return True
    if any(graph.is_table(graph.node[r], tensor) for r in readers):
      return True
    if any(s.op == "gather" for s in node.steps):
      return True  # ONNX Runtime may copy the rows, for all that read them
    if self._borders_regrouping(node, readers) or self._borders_concatenation(node, readers):
      return True
    if self._ends_parts(node, readers):
      return True
    if all(s.op == "cast" for s in node.steps):
      return False
    if graph.contractions(node.name) or len(readers) > 1:
      return True
    if self._is_turned_for_products(node, readers):
      return True
    return any(graph.reduces(r) or self._casts_to_reduction(r) for r in readers)

  def _is_turned_for_products(self, node: Node, readers: tuple[str, ...]) -> bool:
    """Whether what reduces, and may be a region itself, is only moved in front of products of activations.

    Keys behind a norm: in one region with the products each block of queries computes the norm again, and
    both and a softmax are more than a region holds; behind the move ONNX Runtime would write them twice.
    """
    graph = self.graph
    if not self._reductions or len(readers) != 1 or not graph.reduces(node.name):
      return False
    chain = self._chain(readers[0], down=True)
    ends = graph.consumers.get(graph.node[chain[-1]].outputs[0], ()) if chain else ()
    return any(graph.contractions(r) and not graph.contracts_weight(r) for r in ends)

  def is_put_together(self, tensor: str) -> bool:
    """Whether the model yields the tensor, and it is parts beside each other: a cache.

    It is in memory anyway, and no kernel is faster for reading the parts.
    """
    graph = self.graph
    node = graph.producer.get(tensor)
    concat = node is not None and any(s.op == "concat" for s in node.steps)
    return concat and tensor in graph.outputs

  def is_only_viewed(self, tensor: str) -> bool:
    """Whether regions that yield views of the tensor stand for those that yield it."""
    return tensor in self._only_viewed

  @cached_property
  def _only_viewed(self) -> frozenset[str]:
    """From the outputs up, so that no chain of views is too long."""
    graph = self.graph
    found = set[str]()
    order = [o for n in graph.program.nodes for o in n.outputs]
    for tensor in (*reversed(order), *(t for t in graph.consumers if t not in graph.producer)):
      readers = graph.consumers.get(tensor, ())
      if readers and tensor not in graph.outputs and all(
        graph.reasons[r] is None
        and r in graph.views
        and all(o in found or self.is_natural(o) for o in graph.node[r].outputs)
        for r in readers
      ):  # fmt: skip
        found.add(tensor)
    return frozenset(found)

  def _borders_regrouping(self, node: Node, readers: tuple[str, ...]) -> bool:
    """Whether here begins or ends a chain of moves that regroups dimensions in another order.

    No kernel may be found across it, so what is before and after is offered by itself too.
    None yields repeated elements: what is repeated is always offered.
    """
    graph = self.graph
    if any(s.op == "expand" for r in readers for s in graph.node[r].steps):
      return True
    if node.name not in graph.moves:
      return any(self._regroups(self._chain(r, down=True)) for r in readers)
    ends = not graph.moves.issuperset(readers)
    return ends and self._regroups(self._chain(node.name, down=False))

  def _borders_concatenation(self, node: Node, readers: tuple[str, ...]) -> bool:
    """Whether parts are put beside each other here, and not for one function of elements.

    A kernel may not copy or regroup them: what is before and after is offered by itself too.
    """
    graph = self.graph
    if any(s.op == "concat" and len(s.inputs) > MANY_PARTS for s in node.steps):
      return True  # more than a region reads
    for name in (node.name, *readers):
      if any(s.op == "concat" for s in graph.node[name].steps):
        ends = graph.consumers.get(graph.node[name].outputs[0], ())
        if len(ends) != 1 or graph.reasons[ends[0]] or graph.contractions(ends[0]):
          return True
        if ends[0] in graph.moves or graph.reduces(ends[0]):
          return True
    return False

  def _ends_parts(self, node: Node, readers: tuple[str, ...]) -> bool:
    """Whether inseparable parts of one operator end here.

    A border was here before it was taken apart. Where moves and a concatenation follow, it is behind the
    moves: beside others each sequence has rows of its own, by itself all rows are one matrix.
    """
    if not self._rows_apart:
      return self._is_last(node.name)
    if self._are_put_together(readers):
      return any(self._is_last(n) for n in self._chain(node.name, down=False))
    if not self._is_last(node.name):
      return False
    end = self._chain(readers[0], down=True) if len(readers) == 1 else ()
    moves = [n for n in end if not self._are_put_together((n,))]
    last = self.graph.node[moves[-1]].outputs[0] if moves else ""
    return not self._are_put_together(self.graph.consumers.get(last, ()))

  def _are_put_together(self, names: tuple[str, ...]) -> bool:
    """Whether one of these nodes puts parts beside each other."""
    return any(s.op == "concat" for n in names for s in self.graph.node[n].steps)

  def _is_last(self, name: str) -> bool:
    """Whether a node is the last of inseparable parts."""
    node = self.graph.node[name]
    return bool(node.part_of) and not node.with_reader and any(map(self.is_inseparable, node.inputs))

  def regrouped(self, tensor: str) -> bool:
    """Whether a chain of moves ends here that regroups dimensions in another order."""
    node = self.graph.inside(tensor)
    return node is not None and self._regroups(self._chain(node.name, down=False))

  def may_contract(self, name: str, before: frozenset[str], *, weight: bool = False) -> bool:
    """Whether products of a node read in place what the nodes ``before`` it regroup and repeat.

    What is regrouped and not repeated is written in that order by whoever yields it, where that is
    contracted with a weight; of two activations each may be read where it lies, and so may a ``weight``,
    which is what they move.
    """
    graph = self.graph
    reads = not graph.contracts_weight(name)
    moves = [n for n in before if n in graph.moves]
    steps = [s for n in (*moves, name) for s in graph.node[n].steps]
    if not weight and not reads and not any(s.op == "expand" for s in steps):
      return False
    makers = {s.output.name: s for s in steps}

    def shape(x: str) -> tuple[int, ...]:
      own = makers[x].output.shape if x in makers else graph.program.numbers(x)
      return tuple(int(d) for d in own or ())

    products = (s for s in graph.node[name].steps if s.op == "matmul")
    return not any(contracts_apart(s, makers, shape) for s in products)

  def _chain(self, name: str, *, down: bool) -> tuple[str, ...]:
    """The moves from here on, to the inputs or (while each has one reader) to the outputs."""
    graph = self.graph
    found = []
    node = graph.node.get(name)
    while node and graph.reasons[node.name] is None and node.name in graph.moves:
      found.append(node.name)
      if down:
        readers = graph.consumers.get(node.outputs[0], ())
        node = graph.node[readers[0]] if len(readers) == 1 else None
      else:
        node = graph.producer.get(graph.reads[node.name][0])
    return tuple(found)

  def _regroups(self, chain: tuple[str, ...]) -> bool:
    steps = [s for n in chain for s in self.graph.node[n].steps]
    splits = any(s.op == "reshape" and self._splits(s) for s in steps)
    return splits and any(s.op == "transpose" and permutes(s) for s in steps)

  def _splits(self, step: Step) -> bool:
    before = self.graph.program.numbers(str(step.inputs[0]))
    if before is None:  # inside a node, reshapes only move dimensions of extent 1
      return False
    sides = ([d for d in x or () if d != 1] for x in (before, step.output.shape))
    return next(sides) != next(sides)

  def _casts_to_reduction(self, name: str) -> bool:
    graph = self.graph
    node = graph.node[name]
    if not node.steps or any(s.op != "cast" for s in node.steps):
      return False
    return any(len(graph.consumers.get(o, ())) > 1 for o in node.outputs)
