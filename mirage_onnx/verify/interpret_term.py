"""The value of terms in a domain."""

from collections.abc import Iterable, Mapping
from fractions import Fraction

from mirage_onnx.ir import term as t
from mirage_onnx.ir.term import Term
from mirage_onnx.verify import named
from mirage_onnx.verify.domain import Domain
from mirage_onnx.verify.named import NamedArray


def interpret_terms(
  domain: Domain, roots: Iterable[Term], inputs: Mapping[str, NamedArray], extents: Mapping[str, int]
) -> tuple[NamedArray, ...]:
  """The values of ``roots``.

  Raises:
      ValueError: an input is not given, or not over the axes that the term says.
  """
  roots = tuple(roots)
  memo: dict[Term, NamedArray] = {}

  def value(node: Term) -> NamedArray:
    if node.op == t.INPUT:
      found = inputs.get(str(node.attr))
      if found is None or set(found.axes) != set(node.axes):
        over = None if found is None else found.axes
        raise ValueError(f"the term reads {node}, the input is over {over}")
      return found
    if node.op == t.CONST:
      assert isinstance(node.attr, Fraction | str)
      return NamedArray(domain.constant(node.attr), ())
    if node.op == t.EXTENT:
      return NamedArray(domain.extent({a: extents[a] for a in _axes(node)}), ())
    if node.op == t.SUM and len(_axes(node)) == 1 and node.args[0].op == t.MUL:
      return _contract(domain, [visit(a) for a in node.args[0].args], _axes(node)[0])
    args = [visit(a) for a in node.args]
    if node.op in (t.ADD, t.MUL):
      return named.fold(domain, node.op, args)
    if node.op == t.POW:
      assert isinstance(node.attr, Fraction)
      return named.power(domain, args[0], node.attr)
    if node.op in t.REDUCTIONS:
      return named.reduce_(domain, node.op, _axes(node), args[0])
    return named.elementwise(domain, node.op, *args)

  def visit(node: Term) -> NamedArray:
    if node not in memo:
      memo[node] = value(node)
    return memo[node]

  return tuple(map(visit, roots))


def _axes(node: Term) -> tuple[str, ...]:
  assert isinstance(node.attr, tuple)
  return node.attr


def _contract(domain: Domain, factors: list[NamedArray], axis: str) -> NamedArray:
  """Sum over ``axis`` of a product, as one matmul where the factors split into two groups."""
  outer = [f for f in factors if axis not in f.axes]
  inner = sorted((f for f in factors if axis in f.axes), key=lambda f: -len(f.axes))
  first = [f for f in inner if set(f.axes) <= set(inner[0].axes)]
  second = [f for f in inner if not set(f.axes) <= set(inner[0].axes)]
  left = named.fold(domain, "mul", first)
  if second:
    core = named.matmul(domain, left, named.fold(domain, "mul", second), axis)
  else:
    core = named.reduce_(domain, "sum", (axis,), left)
  return named.fold(domain, "mul", [core, *outer])
