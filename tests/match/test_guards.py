"""Guards against NaN go where nothing needs them, and stay where something may."""

from fractions import Fraction

import numpy as np
import pytest
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import term as t
from mirage_onnx.ir.functions import to_term
from mirage_onnx.match.candidates import find_candidates
from mirage_onnx.match.cuts import TIMED
from mirage_onnx.match.guards import is_number, without_guards

X, Y = t.input_("x", ("i", "k")), t.input_("y", ("k", "j"))
PRODUCT = t.reduce_("sum", ["k"], t.mul(X, Y))
MASK, SEEN = t.input_("m", ("i", "j")), t.input_("b", ("i", "j"))


def softmax(s, axis="j"):
  e = shifted(s, axis)
  return t.mul(e, t.power(t.reduce_("sum", [axis], e), -1))


def shifted(s, by):
  """exp(s - maximum)."""
  return t.apply("exp", t.add(s, t.mul(t.const(-1), t.reduce_("rmax", [by], s))))


def guarded(p):
  nan = to_term("sub", t.const(1), t.apply("equal", p, p))
  return t.apply("select", nan, t.const(0), p)


HIDDEN = t.apply("select", SEEN, t.const(0), t.const(-65504))
NUMBERS = {
  "a product": PRODUCT,
  "a softmax of it": softmax(PRODUCT),
  "masked by numbers": softmax(t.add(t.mul(t.const(2), PRODUCT), HIDDEN)),
}
MOST = t.reduce_("rmax", ["i"], PRODUCT)
UNSURE = {
  "a float": X,
  "masked by floats": softmax(t.add(PRODUCT, MASK)),
  "a sum of one": t.reduce_("sum", ["k"], X),
  "a quotient": t.mul(PRODUCT, t.power(t.add(PRODUCT, t.const(1)), -1)),
  "a root": t.power(PRODUCT, Fraction(1, 2)),
  "not its own maximum": t.power(t.reduce_("sum", ["j"], shifted(PRODUCT, "i")), -1),
}


@pytest.mark.parametrize("name", NUMBERS)
def test_a_guard_that_goes(name):
  p = NUMBERS[name]
  assert is_number(p, {"b"})
  assert without_guards([guarded(p)], {"b"}) == (p,)


@pytest.mark.parametrize("name", UNSURE)
def test_a_guard_that_stays(name):
  p = UNSURE[name]
  assert not is_number(p, {"b"})
  assert without_guards([guarded(p)], {"b"}) == (guarded(p),)


@pytest.mark.parametrize("hidden", [float(np.finfo(np.float16).min), -np.inf])
def test_attention_as_torch_exports_it(hidden):
  """With -inf for what is masked a row may have no key, and is 0 then, by another divisor."""
  net = Net(seed=3, opset=18)
  q, k, v = (net.input(1, 2, n, 64) for n in (16, 32, 32))
  mask = net.Where(net.input(1, 1, 16, 32, dtype=np.bool_), 0.0, hidden)
  p = net.Softmax(net.Add(net.MatMul(q, net.Transpose(k, perm=[0, 1, 3, 2])), mask))
  model = net.model(net.MatMul(net.Where(net.IsNaN(p), 0.0, p), v))
  found = find_candidates(import_model(load_model(model)), TIMED)
  whole = max(found.candidates, key=lambda c: len(c.nodes)).region
  assert len(whole.nodes) == len(model.graph.node)
  ops = {u.op for u in t.walk(whole.terms)}
  assert "equal" not in ops
  assert ("max" in ops) == np.isinf(hidden)
