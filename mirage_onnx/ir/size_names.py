"""Names of dimensions that are formulas of others: ``past + seq``, ``2*s0``, ``Min(512, seq)``.

Exporters write such names for sizes that a graph computes. ONNX gives them no meaning, so nothing is proven
by one: they say at which sizes times are looked at, and with which inputs models are compared.
"""

import ast
from collections.abc import Callable, Mapping
from functools import lru_cache

_CALLS: dict[str, Callable[..., int]] = {"Min": min, "Max": max}
_LONGEST = 500


def names_in(name: str) -> frozenset[str]:
  """The names that a formula is of; none for a plain name, or one that is not understood."""
  tree = _parsed(name)
  if tree is None or isinstance(tree, ast.Name):
    return frozenset()
  called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
  names = {n.id for n in ast.walk(tree) if isinstance(n, ast.Name) and id(n) not in called}
  try:
    _number(tree, dict.fromkeys(names, 1))
  except (ArithmeticError, ValueError):
    return frozenset()
  return frozenset(names)


def size_by_name(name: str, sizes: Mapping[str, int], default: int | None = None) -> int | None:
  """The size that a formula says, those of its names being ``sizes``, or ``default``; None for none."""
  tree = _parsed(name)
  missing = names_in(name) - sizes.keys() if tree is not None else frozenset()
  if tree is None or not names_in(name) or (missing and default is None):
    return None
  try:
    return _number(tree, {**dict.fromkeys(missing, default or 0), **sizes})
  except (ArithmeticError, ValueError):
    return None


@lru_cache(1024)
def _parsed(name: str) -> ast.expr | None:
  try:
    return ast.parse(name.strip(), mode="eval").body if len(name) <= _LONGEST else None
  except (SyntaxError, ValueError, RecursionError, MemoryError):
    return None


def _number(tree: ast.expr, sizes: Mapping[str, int]) -> int:
  match tree:
    case ast.Name(name) if name in sizes:
      return sizes[name]
    case ast.Constant(value) if type(value) is int:
      return value
    case ast.Call(ast.Name(name), [_, *_] as arguments, []) if name in _CALLS:
      return _CALLS[name]([_number(x, sizes) for x in arguments])
    case ast.BinOp(left, op, right):
      a, b = _number(left, sizes), _number(right, sizes)
      match op:
        case ast.Add():
          return a + b
        case ast.Sub():
          return a - b
        case ast.Mult():
          return a * b
        case ast.FloorDiv():
          return a // b
        case ast.Mod():
          return a % b
  raise ValueError(ast.dump(tree))
