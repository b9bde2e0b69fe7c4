"""What a prediction may stand on: sizes at which both sides were measured on the target.

``targets/tables/<target>_known.json`` says up to how many rows products with a weight were ahead of ONNX
Runtime, by element type and the size of the weight. Everything else is known as far as the table of
ONNX Runtime's own kernels reaches (``baseline.py``). A region with a node beyond is left as it is:
extrapolated, products of 4096 rows seemed to take 28 us for 69, and BERT became slower.
"""

import json
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache

from mirage_onnx.errors import Rejection
from mirage_onnx.ir.functions import ELEMENTWISE, Price
from mirage_onnx.ir.program import Node, Program, symbols_of
from mirage_onnx.target import TARGETS, Target
from mirage_onnx.targets import table_path
from mirage_onnx.tune.baseline import Table, largest_elements, load_table, weight_product
from mirage_onnx.tune.declared_sizes import Sizes, sizes_text
from mirage_onnx.tune.other_gpu import MOST_ROWS, known_like

#: Why nothing is predicted on a GPU of which nobody has measured kernels.
NO_KERNEL = "no kernel was measured"
#: Functions that take many instructions. What lies before a product every block of it computes again.
FUNCTIONS = frozenset(op for op, f in ELEMENTWISE.items() if f.price is Price.LONG)


@dataclass(frozen=True, slots=True)
class SizesFound:
  """``products``: by type (rows, elements of the weight), of each the most that was measured together.

  ``behind_function_rows``: of a product whose region computes a function before it.
  """

  products: Mapping[str, tuple[tuple[int, int], ...]]
  behind_function_rows: int

  def of_rows(self, most: int) -> "SizesFound":
    """The part of it up to so many rows."""
    few = {t: tuple((min(rows, most), n) for rows, n in found) for t, found in self.products.items()}
    return SizesFound(few, min(most, self.behind_function_rows))

  def most_rows(self, weight: int, dtype: str) -> int:
    """Rows up to which a product with a weight of so many elements of a type is known; 0: none."""
    return max((rows for rows, elements in self.products[dtype] if weight <= elements), default=0)


@cache
def load_known(target: Target) -> SizesFound | None:
  """What is known of ``target``, or of few rows by a GPU like it; None where nobody has measured either."""
  path = table_path(f"{target.name}_known")
  if not path.is_file():
    like = known_like(target)
    known = load_known(like) if like else None
    return known and known.of_rows(MOST_ROWS)
  data = json.loads(path.read_text())
  products = {t: tuple((int(rows), int(n)) for rows, n in found) for t, found in data["products"].items()}
  return SizesFound(products, int(data["behind_function_rows"]))


@dataclass(frozen=True, slots=True)
class Unpredicted:
  """Why predictions do not count: of a node, and of one that comes after another in its region.

  ``behind``: (node, one before it that computes a function) -> the reason.
  """

  nodes: Mapping[str, str] = field(default_factory=dict)
  behind: Mapping[tuple[str, str], str] = field(default_factory=dict)

  def refusal(self, nodes: Sequence[str], target: Target) -> Rejection | None:
    """Why a region of ``nodes`` cannot be replaced on a prediction; None if it can."""
    own = set(nodes)
    found = next(((n, self.nodes[n]) for n in nodes if n in self.nodes), None)
    found = found or next(((n, why) for (n, before), why in self.behind.items() if {n, before} <= own), None)
    if found is None:
      return None
    reason = f"{found[0]}: {found[1]} on {target.name}; --target local measures it"
    if found[1].endswith(NO_KERNEL) and target.name not in TARGETS:
      reason += f", --target {target.arch} predicts for the slowest row of its architecture"
    return Rejection("NOT_PREDICTED", reason, tuple(nodes))


def unpredicted_at(
  program: Program, points: Iterable[Sizes], target: Target, asked: Collection[str] | None = None
) -> Unpredicted:
  """What of a program no prediction says, at any of ``points``: sizes of its named dimensions.

  ``asked``: the nodes of regions (nothing between two nodes of a region is outside); None: all.
  """
  program = program if asked is None else program.part(asked)
  known, table = load_known(target), load_table(target)
  # Of ONNX Runtime a row may be known, of our kernels on it nothing: what a profile says is for who asks.
  unknown = known is None and not target.table
  nodes: dict[str, str] = {}
  behind: dict[tuple[str, str], str] = {}
  makers = {o: n for n in program.nodes for o in n.outputs}
  every = tuple(points) if program.primes else ({},)
  for some in _of_equal_names(program):
    names, different = some.names_of_sizes(), dict[tuple[int, ...], Sizes]()
    for sizes in every:
      different.setdefault(tuple(sizes[n] for n in names), sizes)
    for sizes in different.values():
      sized = some.sized(sizes)
      for node in sized.nodes:
        if node.barrier is not None or node.name in nodes:
          continue
        if why := (unknown and node.steps and NO_KERNEL) or _beyond(node, sized, known, table):
          nodes[node.name] = _at(node, program, sizes) + why
        elif known:
          for pair, why in _behind(node, sized, makers, known).items():
            behind.setdefault(pair, _at(node, program, sizes) + why)
  return Unpredicted(nodes, behind)


def _of_equal_names(program: Program) -> Iterator[Program]:
  """The nodes of a program by the names of sizes in their shapes: each is asked only where these differ.

  A model has 81 points at which a node of one name has three sizes.
  """
  if not program.primes:
    yield program
    return
  primes_of = cache(lambda number: symbols_of(number, program.primes)[1])
  groups: dict[frozenset[int], list[str]] = {}
  for node in program.nodes:
    shapes = (program.numbers(x) or () for x in (*node.inputs, *node.outputs) if x)
    groups.setdefault(frozenset(p for s in shapes for n in s for p in primes_of(n)), []).append(node.name)
  for names in groups.values():
    yield program.part(frozenset(names))


def _at(node: Node, program: Program, sizes: Sizes) -> str:
  """The sizes that a node has something to do with, for a message."""
  shapes = [program.numbers(x) or () for x in (*node.inputs, *node.outputs)]
  primes = {p for n in (n for s in shapes for n in s) for p in symbols_of(n, program.primes)[1]}
  names = [name for p, name in program.primes.items() if p in primes and name in sizes]
  return f"at {sizes_text(sizes, names)}: " if names else ""


def _beyond(node: Node, program: Program, known: SizesFound | None, table: Table | None) -> str | None:
  """Why no prediction of a node counts."""
  if any(s.op == "stored" for s in node.steps):
    return "products with weights of few bits were not measured"
  if node.part_of:
    return f"a part of {node.part_of}, which was not measured in parts,"
  product = weight_product(node, program)
  if product is None:
    if table is None or any(s.op == "matmul" for s in node.steps):
      return None
    elements, most = largest_elements(node, program), table.most_elements
    if elements > most:
      return f"it has {elements} elements, and nothing of more than {most} was measured"
    return None
  if known is None:
    return NO_KERNEL
  rows, k, n = product
  types = {str(t.dtype) for i in node.inputs if i and (t := program.tensors.get(i)) and t.dtype}
  if {"i32", "i64"} & types:  # of a cache, or rows that a run picks: lengths are beside the product
    return "products whose operands end, or lie, where a run says were not measured"
  if other := sorted(types - known.products.keys()):
    return f"products of {', '.join(other)} were not measured"
  if (most := min(known.most_rows(k * n, t) for t in types)) < rows:
    text = f"of {k}x{n} with more than {most} rows" if most else f"with a weight of {k}x{n}"
    return f"its product has {rows} rows, and kernels {text} were not measured ahead of ONNX Runtime"
  return None


def _behind(
  node: Node, program: Program, makers: Mapping[str, Node], known: SizesFound
) -> dict[tuple[str, str], str]:
  """The nodes with functions that feed a product of many rows, elementwise."""
  product = weight_product(node, program)
  if product is None or product[0] <= known.behind_function_rows:
    return {}
  todo, found, seen = list(node.operands), dict[tuple[str, str], str](), set[str]()
  why = (
    f"its product has {product[0]} rows, and kernels that compute a function before one of more than "
    f"{known.behind_function_rows} were not measured ahead of ONNX Runtime"
  )
  while todo:
    before = makers.get(todo.pop())
    if before is None or before.name in seen or before.barrier is not None:
      continue
    seen.add(before.name)
    if any(s.op in FUNCTIONS for s in before.steps):
      found[node.name, before.name] = why
    if not any(s.op == "matmul" for s in before.steps):
      todo += before.operands
  return found
