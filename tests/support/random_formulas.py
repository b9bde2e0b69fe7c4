"""Random formulas, each with a second spelling that is equal, nearly equal or not equal at all."""

import random
from fractions import Fraction

import numpy as np
from raw_programs import (
  EXTENTS,
  INPUTS,
  C,
  Raw,
  W,
  X,
  Y,
  call,
  exp,
  graph_of,
  lift,
  log,
  region_of,
  size,
  sqrt,
  top,
  total,
)  # fmt: skip

from mirage_onnx.verify.domain import Float64
from mirage_onnx.verify.interpret_term import interpret_terms
from mirage_onnx.verify.interpret_ugraph import interpret_ugraph
from mirage_onnx.verify.named import NamedArray
from mirage_onnx.verify.reduced import reduced_instantiation

_LEAVES = (X, X, Y, C, W, lift(2), lift(3), lift(-1), lift(Fraction(1, 8)), lift(67), size())
_UNARY = ("exp", "exp", "log", "sqrt", "neg", "sigmoid", "square", "total", "top")
_BINARY = ("add", "sub", "mul", "div", "max")

#: What may stand for a node: by its head, and for every node. Not all of it is true.
_REWRITES = {
  "exp": (
    lambda n, a: exp(a - C) * exp(C),
    lambda n, a: exp(a - top(X)) * exp(top(X)),
    lambda n, a: exp(2 * a) / exp(a),
    lambda n, a: exp(a) + exp(a - a) - 1,
  ),
  "sqrt": (
    lambda n, a: sqrt(a * 4) * Fraction(1, 2),
    lambda n, a: sqrt(a * 4) * Fraction(-1, 2),
    lambda n, a: a / sqrt(a),
    lambda n, a: sqrt(a**2 / a),
  ),
  "log": (
    lambda n, a: log(a**2) * Fraction(1, 2),
    lambda n, a: log(a * exp(X)) - X,
    lambda n, a: log(a * 2) - log(lift(2)),
  ),
  "square": (lambda n, a: a * a, lambda n, a: sqrt(a**4), lambda n, a: sqrt(a**2) * a),
  "mul": (
    lambda n, a, b: b * a,
    lambda n, a, b: sqrt(a**2) * b,
    lambda n, a, b: sqrt(a) * sqrt(a) * b,
  ),
  "div": (lambda n, a, b: a * (1 / b),),
  "add": (lambda n, a, b: b + a, lambda n, a, b: a - b),
  "sub": (lambda n, a, b: a + -b, lambda n, a, b: b - a),
  "max": (lambda n, a, b: call("max", b, a), lambda n, a, b: a),
  "sigmoid": (lambda n, a: exp(a) / (1 + exp(a)), lambda n, a: lift(1) - call("sigmoid", -a)),
  "sum": (lambda n, a: n * size(), lambda n, a: a),
  "rmax": (lambda n, a: n + 1, lambda n, a: a),
}
_ANY = (
  lambda n: log(exp(n)),
  lambda n: exp(log(n)),
  lambda n: n * 2 * Fraction(1, 2),
  lambda n: n + top(X) - top(X),
  lambda n: n * exp(X) / exp(X),
  lambda n: -n,
  lambda n: n * Fraction(1001, 1000),
  lambda n: call("max", n, n),
)


def formula(pick, depth):
  if depth == 0 or pick.random() < 0.1:
    return pick.choice(_LEAVES)
  a = formula(pick, depth - 1)
  op = pick.choice(_UNARY + _BINARY)
  if op in _BINARY:
    return call(op, a, formula(pick, depth - 1))
  if op in ("total", "top"):
    reduced = total if op == "total" else top
    return reduced(a, pick.choice(a.axes)) if a.axes else a * a
  return call(op, a)


def pairs(seed):
  """Two formulas over the same axes, the second with one node rewritten."""
  pick = random.Random(seed)
  while True:
    first = formula(pick, pick.choice((2, 3, 4)))
    node = pick.choice(list(_nodes(first)))
    own = _REWRITES.get(node.op, ())
    new = pick.choice(own)(node, *node.args) if own and pick.random() < 0.7 else pick.choice(_ANY)(node)
    second = _replace(first, node, new)
    if first.axes and second.axes == first.axes and second != first:
      yield first, second


def _nodes(x):
  yield x
  for a in x.args:
    yield from _nodes(a)


def _replace(x, old, new):
  if x is old:
    return new
  if not x.args:
    return x
  args = tuple(_replace(a, old, new) for a in x.args)
  if x.op not in ("sum", "rmax"):
    return Raw(x.op, args, x.attr, tuple(sorted({a for y in args for a in y.axes})))
  gone = x.attr
  if not set(gone) <= set(args[0].axes):
    return args[0]
  return Raw(x.op, args, gone, tuple(a for a in args[0].axes if a not in gone))


def float64_error(want, got):
  """The largest relative difference where ``want`` is finite; None if it nowhere is.

  Infinite where ``got`` is not finite there.
  """
  region, graph = region_of(want), graph_of(got)
  sizes = reduced_instantiation(graph, EXTENTS)
  rng, domain, inputs = np.random.default_rng(0), Float64(4), {}
  for name, axes in INPUTS.items():
    data = rng.standard_normal([4, *(sizes.extents[a] for a in axes)])
    data[1], data[2] = -data[0], np.abs(data[0]) + 0.3
    inputs[name] = NamedArray(data, axes)
  x = interpret_terms(domain, region.terms, inputs, sizes.extents)[0].aligned(want.axes)
  y = interpret_ugraph(domain, graph, sizes.params, sizes.extents, inputs)["o"].aligned(want.axes)
  x = np.broadcast_to(x, y.shape)
  # Larger values overflow on the way in one spelling and not in the other.
  compared = np.isfinite(x) & (np.abs(x) < 1e30)
  if not compared.any():
    return None
  error = np.abs(x[compared] - y[compared]) / (np.abs(x[compared]) + 1e-3)
  return float(np.nan_to_num(error, nan=np.inf, posinf=np.inf).max())
