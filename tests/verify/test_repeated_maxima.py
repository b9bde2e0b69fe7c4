"""max(x, x) = x in its four forms: what the rewrites change, and that they keep the values."""

import numpy as np
import pytest
from draft import Draft, each
from goldens import GOLDENS
from mutant_oracle import outputs, scenes
from mutations import mutants

from mirage_onnx.ir.spec import check_ugraph
from mirage_onnx.ir.ugraph import Phase, UGraph
from mirage_onnx.verify.equivalence import Proof, verify
from mirage_onnx.verify.repeated_maxima import without_repeats

BY_NAME = {g.name: g for g in GOLDENS}


def edited(golden, draft):
  return UGraph(golden.ugraph.tensors, (draft.done(), *golden.ugraph.kernels[1:]))


def key(kernel, op):
  return next(i for i, _ in each(kernel, op))


def of_itself(d, op):
  acc = key(d.kernel, "acc_max")
  return d.then(acc, op, acc, acc)


def of_running_maxima(d):
  return d.set(key(d.kernel, "acc_max"), args=(key(d.kernel, "run_max"),))


def last_running_maximum(d):
  zero = d.const(0, Phase.LOOP)
  return d.set(key(d.kernel, "acc_max"), op="acc_scaled", args=(key(d.kernel, "run_max"), zero))


def over_equal_ranks(d):
  total = key(d.kernel, "red_sum")
  root = d.put("square", total)
  return d.redirect(total, d.put("sqrt", d.put("red_max", root)), root)


@pytest.mark.parametrize(
  ("name", "edit"),
  [
    ("log_softmax", lambda d: of_itself(d, "max")),
    ("log_softmax", lambda d: of_itself(d, "min")),
    ("log_softmax", of_running_maxima),
    ("log_softmax", last_running_maximum),
    ("attention_cluster", of_running_maxima),
    ("gqa_decode", lambda d: of_itself(d, "max")),
  ],
)
def test_a_repeated_maximum_is_no_difference(name, edit):
  golden = BY_NAME[name]
  assert callable(edit)
  graph = edited(golden, edit(Draft(golden.ugraph.kernels[0])))
  assert without_repeats(graph) != graph
  assert check_ugraph(without_repeats(graph)) is None
  assert isinstance(verify(golden.region, graph), Proof)


def test_a_maximum_over_ranks_that_are_equal():
  golden = BY_NAME["norm_linear_cluster"]
  graph = edited(golden, over_equal_ranks(Draft(golden.ugraph.kernels[0])))
  (kernel,) = without_repeats(graph).kernels
  before, after = (
    next(op.args for _, op in each(k, "sqrt")) for k in (graph.kernels[0], kernel)
  )  # fmt: skip
  assert graph.kernels[0].ops[before[0]].op == "red_max"
  assert kernel.ops[after[0]].op == "square"


def test_ranks_with_their_own_values_or_iterations_stay():
  """A maximum of what each rank has itself, and the last maximum of a rank without iterations."""
  golden = BY_NAME["attention_cluster"]
  assert without_repeats(golden.ugraph) is golden.ugraph
  last = edited(golden, last_running_maximum(Draft(golden.ugraph.kernels[0])))
  assert without_repeats(last) == last


def test_rewrites_keep_the_values_of_mutants():
  """Right or wrong, a mutant computes the same before and after, on hard inputs too."""
  changed = 0
  for name in ("norm_linear_cluster", "attention_cluster", "softmax_rows", "log_softmax"):
    golden = BY_NAME[name]
    places = scenes(golden)
    for _, mutant in mutants(golden.ugraph):
      if check_ugraph(mutant) is None and (plain := without_repeats(mutant)) != mutant:
        changed += 1
        for scene in places:
          before, after = outputs(mutant, scene), outputs(plain, scene)
          for output, x in before.items():
            np.testing.assert_allclose(after[output], x, rtol=1e-12)
  assert changed >= 15
