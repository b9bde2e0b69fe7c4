"""Canonical texts: what does not change them, and that everything else does."""

import random
from dataclasses import replace
from fractions import Fraction
from functools import cache

import numpy as np
import pytest
from draft import Draft
from goldens import TEXTS
from hypothesis import given
from hypothesis import strategies as st
from mutations import mutants

from mirage_onnx.ir import DType, Layout, parse_ugraph
from mirage_onnx.ir import term as t
from mirage_onnx.ir.functions import ELEMENTWISE, to_term
from mirage_onnx.ir.spec import check_ugraph
from mirage_onnx.superopt.canonical import HEAVY, canonical_kernel
from mirage_onnx.superopt.chain_form import chain_form

NAMES = sorted(TEXTS)


@cache
def golden(name):
  return parse_ugraph(TEXTS[name])


def texts(graph):
  return tuple(canonical_kernel(k, graph.tensors) for k in graph.kernels)


def shuffled(kernel, rng):
  """Another order of the operations that respects their arguments."""
  left, place = set(range(len(kernel.ops))), dict[int, int]()
  ops = []
  while left:
    i = rng.choice(sorted(i for i in left if all(a in place for a in kernel.ops[i].args)))
    left.remove(i)
    place[i] = len(ops)
    ops.append(replace(kernel.ops[i], args=tuple(place[a] for a in kernel.ops[i].args)))
  saves = tuple(replace(s, arg=place[s.arg]) for s in kernel.saves[::-1])
  return replace(kernel, ops=tuple(ops), saves=saves)


def respelled(kernel, rng):
  """The same functions in other words, values computed twice, other layouts and casts."""
  draft = Draft(kernel)
  for i, op in enumerate(kernel.ops):
    args = op.args
    match op.op:
      case "add" | "mul" | "max" | "min" | "matmul" if rng.random() < 0.5:
        draft.set(i, args=args[::-1])
      case "div":
        draft.set(i, op="mul", args=(args[0], draft.put("recip", args[1])))
      case "sub":
        draft.set(i, op="add", args=(args[0], draft.put("neg", args[1])))
      case "square":
        draft.set(i, op="mul", args=(args[0], args[0]))
      case "rsqrt":
        draft.set(i, op="recip", args=(draft.put("sqrt", args[0]),))
      case "sqrt" | "recip":
        power = Fraction(1, 2) if op.op == "sqrt" else Fraction(-1)
        draft.set(i, op="powr", value=power)
      case "relu":
        draft.set(i, op="max", args=(args[0], draft.const(0, op.phase)))
      case "sigmoid":
        below = draft.put("exp", draft.put("neg", args[0]))
        total = draft.put("add", draft.const(1, op.phase), below)
        draft.set(i, op="recip", args=(total,))
  for i, op in enumerate(kernel.ops):
    if op.op not in HEAVY and op.args and rng.random() < 0.3:
      draft.redirect(i, draft.copy(i))
    if op.op in ("sum", "rmax") and rng.random() < 0.5:
      narrow = draft.put("cast", op.args[0])
      draft.set(narrow, dtype=DType.BF16).set(i, args=(narrow,))
  done = draft.done()
  return replace(done, ops=tuple(replace(o, layout=Layout.SHARED) for o in done.ops))


@pytest.mark.parametrize("name", NAMES)
def test_spelling_does_not_change_it(name):
  graph = golden(name)
  for seed in range(5):
    rng = random.Random(seed)
    kernels = tuple(shuffled(respelled(k, rng), rng) for k in graph.kernels)
    assert kernels != graph.kernels
    assert texts(replace(graph, kernels=kernels)) == texts(graph)


def test_names_of_kernels_do_not_change_it():
  graph = golden("attention_split_kv")
  first = graph.kernels[0]
  renamed = replace(
    first,
    name="other",
    saves=tuple(
      replace(s, omap=tuple(a and a.replace("/k0", "/other") for a in s.omap)) for s in first.saves
    ),
  )
  assert canonical_kernel(renamed, graph.tensors) == texts(graph)[0]


@pytest.mark.parametrize("name", NAMES)
def test_anything_else_changes_it(name):
  """Every well-formed mutant has another text, but those that compute the same chains."""
  graph = golden(name)
  kept = []
  total = 0
  for kind, mutant in mutants(graph):
    if kind == "cast" or mutant.tensors != graph.tensors or check_ugraph(mutant) is not None:
      continue
    if len(mutant.kernels) != len(graph.kernels):
      continue
    total += 1
    if texts(mutant) == texts(graph):
      kept.append((kind, mutant))
  assert total > 10
  for kind, mutant in kept:
    assert same_chains(graph, mutant), f"{kind} is not seen: {mutant.kernels}"
  assert len(kept) <= total // 5


def same_chains(graph, mutant):
  """Whether the heavy values of two graphs get equal numbers, whatever their arguments are."""
  return all(_fingerprint(a) == _fingerprint(b) for a, b in zip(graph.kernels, mutant.kernels, strict=True))


def _fingerprint(kernel):
  """What is saved, where each heavy value is a random function of its arguments' numbers."""
  values = []
  for op in kernel.ops:
    args = [values[a] for a in op.args]
    if op.op in HEAVY:
      if op.op == "matmul":
        args.sort()
      near = tuple(float(f"{a:.9g}") for a in args)
      maps = (op.imap, op.cmap, op.fmap)
      seed = repr((op.op, op.tensor, tuple(sorted(op.reduced)), maps, op.phase, near))
      values.append(random.Random(seed).uniform(0.5, 2.0))
    elif op.op == "const":
      values.append(float(op.value) if isinstance(op.value, Fraction) else float(np.pi))
    elif op.op == "extent":
      values.append(random.Random(repr(sorted(op.reduced))).uniform(2.0, 9.0))
    elif op.op == "powr":
      values.append(float(np.power(args[0], float(op.value))))
    elif op.op == "cast":
      values.append(args[0])
    else:
      with np.errstate(all="ignore"):
        values.append(float(ELEMENTWISE[op.op].reals(*args)))
  saved = sorted((s.tensor, f"{values[s.arg]:.6g}", s.omap) for s in kernel.saves)
  return kernel.grid, kernel.loop, kernel.cluster, tuple(saved)


VARIABLES = [t.input_(name, "k") for name in "xyz"]
UNARY = ("neg", "recip", "square", "sqrt", "rsqrt", "exp", "tanh", "sigmoid")


@st.composite
def chains(draw, depth=4):
  if not depth or draw(st.integers(0, 3)) == 0:
    return draw(st.sampled_from([*VARIABLES, t.const(2), t.const(Fraction(1, 3))]))
  if draw(st.booleans()):
    return to_term(draw(st.sampled_from(UNARY)), draw(chains(depth - 1)))
  op = draw(st.sampled_from(("add", "sub", "mul", "div", "max")))
  return to_term(op, draw(chains(depth - 1)), draw(chains(depth - 1)))


def value(x, at):
  with np.errstate(all="ignore"):
    if x in at:
      return at[x]
    args = [value(a, at) for a in x.args]
    match x.op:
      case t.CONST:
        return float(x.attr)
      case t.ADD:
        return float(np.sum(args))
      case t.MUL:
        return float(np.prod(args))
      case t.POW:
        return float(np.power(args[0], float(x.attr)))
    return float(ELEMENTWISE[x.op].reals(*args))


@given(chains())
def test_a_chain_form_is_the_same_function(x):
  form = chain_form(x)
  assert chain_form(form) is form
  for values in ((0.7, 1.3, 1.9), (1.1, 0.6, 1.4)):
    at = dict(zip(VARIABLES, values, strict=True))
    want, got = value(x, at), value(form, at)
    if np.isfinite(want) and 1e-6 < abs(want) < 1e6:
      assert got == pytest.approx(want, rel=1e-6)


@given(chains(3), chains(3), chains(3))
def test_laws_that_a_chain_form_knows(x, y, z):
  def same(a, b):
    return chain_form(a) is chain_form(b)

  assert same(t.mul(x, t.add(y, z)), t.add(t.mul(x, y), t.mul(x, z)))
  assert same(t.mul(x, t.mul(y, z)), t.mul(t.mul(x, y), z))
  assert same(to_term("square", t.add(x, y)), t.mul(t.add(x, y), t.add(y, x)))
  assert same(t.mul(t.apply("exp", x), t.apply("exp", y)), t.apply("exp", t.add(x, y)))
  assert same(to_term("div", x, y), t.mul(x, to_term("recip", y)))


def test_no_cancellation():
  x, y, _ = VARIABLES
  assert chain_form(to_term("div", t.mul(x, y), y)) is not chain_form(x)
  assert chain_form(to_term("sqrt", t.mul(x, x))) is not chain_form(x)


def test_every_golden_kernel_is_its_own():
  """No two kernels of the goldens have one text, but where one µGraph is in both."""
  found = {}
  for name in NAMES:
    for text in texts(golden(name)):
      assert found.setdefault(text, name) == name
  assert len(found) > len(NAMES)
