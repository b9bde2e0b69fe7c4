"""A search that is wrong: axioms that do not hold, and answers that belong to other questions."""

from dataclasses import replace
from functools import partial
from itertools import permutations

from mirage_onnx.ir.term import ADD, MUL, SUM
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.egraph import ENode
from mutants.harness import Fault
from mutants.hooks import patched, production
from mutants.survey import survey

_TABLES = ("mirage_onnx.superopt.axioms:AXIOMS", "mirage_onnx.superopt.search:AXIOMS",
           "mirage_onnx.superopt.saturated:saturate", "mirage_onnx.searching:AXIOMS")  # fmt: skip
SEARCH = "mirage_onnx.judging:search_all"
SATURATE = "mirage_onnx.superopt.saturated:saturate"
COMPILE = "mirage_onnx.compiler.candidates:compile_many"
STORED = "mirage_onnx.rewrite.constants:Constants.permuted"


def axioms(_, subject):
  """One axiom yields something else than what it may."""
  for axiom in AXIOMS:
    for name, wrong in _WRONG.items():
      plant = partial(_saturating, axiom, replace(axiom, apply=partial(wrong, axiom.apply)))
      yield Fault("axiom", subject, f"{axiom.name}: {name}", plant, searches=True)


def _saturating(axiom, wrong):
  saturate = production(SATURATE)

  def other(g, axioms=AXIOMS, **more):
    return saturate(g, tuple(wrong if a.name == axiom.name else a for a in axioms), **more)

  return patched(other, SATURATE)


def _part(apply, g, node):
  """A factor, a summand or the body of a sum instead of the whole."""
  for c in apply(g, node):
    inner = [n for n in g.nodes(c) if n.children and set(g.axes(n.children[0])) == set(g.axes(c))]
    yield inner[0].children[0] if inner else c


def _other_operator(apply, g, node):
  """A sum of two for their product, or the other way round."""
  for c in apply(g, node):
    flipped = [n for n in g.nodes(c) if n.op in (ADD, MUL) and len(n.children) > 1]
    if flipped:
      n = flipped[0]
      yield g.product(n.children) if n.op == ADD else g.total(n.children)
    else:
      yield c


def _operand(apply, g, node):
  """Any value over the same axes as the whole is equal to it."""
  yield from apply(g, node)
  if node.op in (ADD, MUL, SUM):
    c = g.insert(ENode(node.op, node.children, node.attr))
    yield from (child for child in node.children if set(g.axes(child)) == set(g.axes(c)))


_WRONG = {"a part": _part, "another operator": _other_operator, "an operand": _operand}


def stale(bench, subject):
  """Answers of a cache that are those of another question."""
  chosen = survey(bench, subject).chosen
  keys = list(dict.fromkeys(r.key for r, _ in chosen))
  for a, b in permutations(keys, 2):
    yield Fault(
      "cache", subject, f"{a[:6]} is given the search of {b[:6]}", partial(_answered, bench, subject, a, b)
    )
  count = sum(len(c.sources) for _, c in chosen)
  if count > 1:
    yield Fault("cache", subject, "images in the other order", partial(_images, lambda found: found[::-1]))
    yield Fault("cache", subject, "the first image for all", partial(_images, lambda f: [f[0]] * len(f)))


def _answered(bench, subject, a, b):
  import pickle

  found = pickle.loads((bench.folder / f"{subject}.searches").read_bytes())
  search = production(SEARCH)

  def other(loaded, regions, setting, *, done, **more):
    def told(i, result):
      done(i, found[b] if regions[i].key == a and b in found else result)

    search(loaded, regions, setting, done=told, **more)

  return patched(other, SEARCH)


def _images(change):
  known = []
  compile_many = production(COMPILE)

  def other(sources, *args, **more):
    known.extend(compile_many(sources, *args, **more))
    return change(list(known))[: len(sources)] if len(sources) < len(known) else change(list(known))

  return patched(other, COMPILE)


def stored(_, subject):
  """A weight that is stored in another order holds something else."""
  from onnx import numpy_helper

  permuted = production(STORED)
  for name, change in (
    ("not reordered", lambda x: x.T.reshape(x.shape)), ("negated", lambda x: -x),
    ("a row further", lambda x: _rolled(x, 0)), ("a column further", lambda x: _rolled(x, 1)),
    ("the first row for all", lambda x: x * 0 + x[:1]), ("half as large", lambda x: x / 2),
  ):  # fmt: skip

    def other(self, use, key, change=change):
      tensor = permuted(self, use, key)
      x = numpy_helper.to_array(tensor)
      return numpy_helper.from_array(change(x).astype(x.dtype), tensor.name)

    yield Fault("weight", subject, name, partial(patched, other, STORED))


def _rolled(x, axis):
  import numpy as np

  return np.roll(x, 1, axis)
