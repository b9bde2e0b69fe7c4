"""What the graph of a model says of its inputs: the ends of ids, masks, lengths, sizes that add up.

An input is followed through what keeps its values (casts, views) to the operators that read it. A
name decides only where the graph cannot: "mask", "position", and the words "past" and "total" of
symbols, as exporters write them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field

import onnx
from onnx import TensorProto

#: Operators whose result has the values of their first input, in another shape or type.
_VIEWS = frozenset(
  "Cast Identity Reshape Unsqueeze Squeeze Flatten Transpose Expand Slice Split Tile Concat".split()
)
#: (operator, input of indices) -> (input of the table, its axis; None: the attribute).
_PICKS: dict[tuple[str, int], tuple[int, int | None]] = {
  ("Gather", 1): (0, None), ("GatherElements", 1): (0, None),
  ("EmbedLayerNormalization", 0): (2, 0), ("EmbedLayerNormalization", 1): (4, 0),
  ("EmbedLayerNormalization", 8): (3, 0), ("RotaryEmbedding", 1): (2, 0),
}  # fmt: skip
#: What a mask of integers or booleans passes on its way to the logits.
_LOGIC = frozenset("Not And Or Sub Mul Equal Greater Less GreaterOrEqual LessOrEqual Where GatherND".split())
#: What a sum over a mask passes on its way to being a length.
_COUNTS = frozenset({"ReduceSum", "Sub", "Add", "ArgMax"})
ATTENTION = "GroupQueryAttention"
#: (operator, input that is a cache) -> the output that is it afterwards.
CACHES = {(ATTENTION, 3): 1, (ATTENTION, 4): 2, ("TensorScatter", 0): 0}
#: Of it: the queries, the cache of keys, the lengths less one, and the largest length.
_QUERY, _PAST, _LENGTHS, _TOTAL = 0, 3, 5, 6


@dataclass(frozen=True, slots=True)
class Length:
  """An input that holds ``past + new`` less ``minus``: both are sizes of dimensions.

  ``free``: it may be any row of a cache that keeps its size, for one new token.
  """

  past: int | str
  new: int | str
  minus: int
  free: bool = False


@dataclass(frozen=True, slots=True)
class InputFacts:
  """``limits``: exclusive ends of integers. ``masks``: 1 or True where a position counts (floats: 0).

  ``padded``: masks that are summed up to lengths, so that they hide a tail only. ``positions``: of
  tokens. ``lengths``: what they are made of. ``symbols``: of the dimensions of inputs. ``sizes``: of
  symbols that an operator leaves no choice. ``shared``: outputs that are given the memory of an input: a
  cache of one size, which a step changes in place. ``growing``: outputs that may be given it where a run
  has room in it: the input, and the symbols of its room and of the least that is needed. ``new``: tokens of a
  step whose number is no symbol (0: it is one, or nobody knows).
  """

  limits: Mapping[str, int] = field(default_factory=dict)
  masks: frozenset[str] = frozenset()
  padded: frozenset[str] = frozenset()
  positions: frozenset[str] = frozenset()
  lengths: Mapping[str, Length] = field(default_factory=dict)
  symbols: frozenset[str] = frozenset()
  sizes: Mapping[str, int] = field(default_factory=dict)
  shared: Mapping[str, str] = field(default_factory=dict)
  growing: Mapping[str, tuple[str, str, str]] = field(default_factory=dict)
  new: int = 0

  def shared_at(self, sizes: Mapping[str, int]) -> dict[str, str]:
    """As ``shared``, where dimensions have these sizes."""
    fits = {o: i for o, (i, room, least) in self.growing.items() if sizes.get(room, 0) >= sizes.get(least, 1)}
    return {**fits, **self.shared}

  def totals(self) -> dict[str, tuple[str, str | int]]:
    """Symbol of a total length -> that of the past, and that or the number of what is new."""
    words = {s: s.lower() for s in sorted(self.symbols) if s.isidentifier()}
    total = [s for s, w in words.items() if "total" in w]
    past = [s for s, w in words.items() if "past" in w and s not in total]
    new = [s for s, w in words.items() if "seq" in w and s not in (*total, *past)]
    more = new[0] if new else self.new
    return dict.fromkeys(total, (past[0], more)) if past and more else {}


def input_facts(model: onnx.ModelProto) -> InputFacts:
  """Facts of the inputs of the main graph, by name."""
  graph = model.graph
  stored = {t.name for t in graph.initializer}
  inputs = [v for v in graph.input if v.name not in stored]
  walk = _Walk(graph)
  limits: dict[str, int] = {}
  masks, padded, positions = set[str](), set[str](), set[str]()
  lengths: dict[str, Length] = {}
  for value in inputs:
    name, kind = value.name, value.type.tensor_type.elem_type
    if kind in (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.BFLOAT16):
      if "mask" in name.lower() or walk.is_added_to_logits(name):
        masks.add(name)
      continue
    if ends := list(walk.ends(name)):
      limits[name] = min(ends)
    if length := walk.length(name):
      lengths[name] = length
    elif "position" in name.lower():
      positions.add(name)
    elif "mask" in name.lower() or (not ends and walk.reaches(name, _VIEWS | _LOGIC, {"Softmax", "Where"})):
      masks.add(name)
      if walk.is_summed_to_lengths(name):
        padded.add(name)
  symbols = {d.dim_param for v in inputs for d in v.type.tensor_type.shape.dim if d.dim_param}
  steps = {s[-1] for v in inputs if (v.name in limits or v.name in positions) and (s := walk.shape(v.name))}
  fixed = max((n for n in steps if isinstance(n, int)), default=0)
  return InputFacts(
    limits, frozenset(masks), frozenset(padded), frozenset(positions), lengths, frozenset(symbols),
    {**dict(walk.joined_sizes(v.name for v in inputs)), **dict(walk.cache_sizes(v.name for v in inputs))},
    dict(walk.shared({v.name for v in inputs}, {v.name for v in graph.output})),
    dict(walk.growing({v.name for v in inputs}, {v.name for v in graph.output})), fixed,
  )  # fmt: skip


class _Walk:
  """The readers of every value of a graph, and the shapes that are known."""

  def __init__(self, graph: onnx.GraphProto) -> None:
    self._readers: dict[str, list[tuple[onnx.NodeProto, int]]] = {}
    for node in graph.node:
      for k, name in enumerate(node.input):
        self._readers.setdefault(name, []).append((node, k))
    self._shapes: dict[str, Sequence[int | str]] = {t.name: list(t.dims) for t in graph.initializer}
    for v in (*graph.input, *graph.output, *graph.value_info):
      if v.type.tensor_type.HasField("shape") and v.name not in self._shapes:
        dims = v.type.tensor_type.shape.dim
        self._shapes[v.name] = [d.dim_value if d.HasField("dim_value") else d.dim_param for d in dims]

  def shape(self, name: str) -> Sequence[int | str]:
    """What is known of the dimensions of ``name``."""
    return self._shapes.get(name, ())

  def _reached(self, name: str, through: frozenset[str]) -> Iterator[tuple[onnx.NodeProto, int]]:
    """Every (node, input) that reads ``name`` or what operators ``through`` make of it."""
    todo, seen = [name], {name}
    while todo:
      for node, k in self._readers.get(todo.pop(), ()):
        yield node, k
        first = k == 0 or node.op_type not in _VIEWS or node.op_type == "Concat"
        if node.op_type in through and first:
          todo.extend(o for o in node.output if o not in seen)
          seen.update(node.output)

  def ends(self, name: str) -> Iterator[int]:
    """The sizes of the axes that the values of ``name`` pick from."""
    for node, k in self._reached(name, _VIEWS):
      if (node.op_type, k) not in _PICKS:
        continue
      table, axis = _PICKS[node.op_type, k]
      if axis is None:
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0)
      shape = self._shapes.get(node.input[table], ()) if table < len(node.input) else ()
      if -len(shape) <= axis < len(shape) and isinstance(size := shape[axis], int) and size > 0:
        yield size

  def length(self, name: str) -> Length | None:
    """Where ``name`` is the lengths of a cache, or the longest of them."""
    for node, k in self._reached(name, _VIEWS):
      if node.op_type == ATTENTION and k in (_LENGTHS, _TOTAL):
        past, query = (self._shapes.get(node.input[i], ()) for i in (_PAST, _QUERY))
        new = query[1] if len(query) == 3 else 1
        made = self._shapes.get(node.output[1], ()) if len(node.output) > 1 else ()
        free = False
        if len(past) == len(made) == 4 and past[2] == made[2]:
          new, free = 0, new == 1  # one buffer of a size that does not change, which has a place for it
        return Length(past[2] if len(past) == 4 else 0, new, int(k == _LENGTHS), free)
    return None

  def cache_sizes(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Of what reads a cache: how large a head is, by its queries; and one new token.

    With a past, onnxruntime takes several new tokens of one sequence only.
    """
    for name in names:
      for node, k in self._readers.get(name, ()):
        past, query = (self._shapes.get(i, ()) for i in (name, node.input[_QUERY]))
        if node.op_type != ATTENTION or k not in (_PAST, _PAST + 1) or len(past) != 4 or not query:
          continue
        heads, groups = (
          next((a.i for a in node.attribute if a.name == n), 0) for n in ("num_heads", "kv_num_heads")
        )
        if not node.input[_QUERY + 1]:  # keys and values are behind the queries
          heads += 2 * groups
        if isinstance(past[3], str) and isinstance(query[-1], int) and heads > 0 and query[-1] % heads == 0:
          yield past[3], query[-1] // heads
        if len(query) == 3 and isinstance(query[1], str):
          yield query[1], 1

  def joined_sizes(self, names: Iterable[str]) -> Iterator[tuple[str, int]]:
    """Of what is joined to other values along one axis: the others' sizes along the rest."""
    for name in names:
      shape = self._shapes.get(name, ())
      for node, _ in self._readers.get(name, ()):
        if node.op_type != "Concat":
          continue
        axis = next((a.i for a in node.attribute if a.name == "axis"), 0) % max(1, len(shape))
        for other in (self._shapes.get(i, ()) for i in node.input):
          pairs = enumerate(zip(shape, other, strict=False)) if len(other) == len(shape) else ()
          yield from (
            (ours, size)
            for k, (ours, size) in pairs
            if k != axis and isinstance(ours, str) and ours and isinstance(size, int) and size > 0
          )

  def shared(self, inputs: Set[str], outputs: Set[str]) -> Iterator[tuple[str, str]]:
    """(present, past) of operators whose cache is as large as before."""
    for present, name, before, after in self._caches(inputs, outputs):
      if before == after:
        yield present, name

  def growing(self, inputs: Set[str], outputs: Set[str]) -> Iterator[tuple[str, tuple[str, str, str]]]:
    """present, (past, ...) of caches that are longer afterwards, unless there is room for what is new."""
    for present, name, before, after in self._caches(inputs, outputs):
      room, least = (x[2] if len(x) == 4 else 0 for x in (before, after))
      if isinstance(room, str) and isinstance(least, str) and "" not in (room, least) and room != least:
        yield present, (name, room, least)

  def _caches(
    self, inputs: Set[str], outputs: Set[str]
  ) -> Iterator[tuple[str, str, list[int | str], list[int | str]]]:
    """present, past and the dimensions of both."""
    for name in sorted(inputs):
      for node, k in self._readers.get(name, ()):
        made = CACHES.get((node.op_type, k), -1)
        if 0 <= made < len(node.output) and (present := node.output[made]) in outputs:
          before, after = (list(self._shapes.get(x, ())) for x in (name, present))
          if before:
            yield present, name, before, after

  def reaches(self, name: str, through: frozenset[str], ends: set[str]) -> bool:
    return any(node.op_type in ends for node, _ in self._reached(name, through))

  def is_summed_to_lengths(self, name: str) -> bool:
    found = self._reached(name, _VIEWS | _COUNTS)
    return any(node.op_type == ATTENTION and k in (_LENGTHS, _TOTAL) for node, k in found)

  def is_added_to_logits(self, name: str) -> bool:
    """Whether ``name`` is a term of what a softmax is taken of."""
    return self.reaches(name, _VIEWS | {"Add"}, {"Softmax"})
