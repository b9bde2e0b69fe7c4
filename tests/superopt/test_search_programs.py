"""The programs that the search must solve: what they are made of, and what is asked of them."""

from fractions import Fraction

import onnx
import pytest
from goldens import golden
from op_by_op import FREE
from program_net import PRIMITIVE, ProgramNet, as_weights, onnx_model, operators
from search_expectations import Expected, accumulators, contractions, has_parts, used_ops
from search_programs import ENTRIES, EXPECTED, PROGRAMS
from small_models import Net

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.ir import term as t
from mirage_onnx.ir.program import Constant
from mirage_onnx.match.whole import whole_region
from mirage_onnx.verify.equivalence import check_terms

#: What the original asks about at most; more are nowhere needed.
MOST_INPUTS = 6
#: Axes that are not those of a real model: at least one must be, in every program.
LARGE = 512


def test_names_are_unique():
  """Families share one table, where a second program of a name would replace the first."""
  from attention_programs import ATTENTIONS
  from linear_programs import LINEARS
  from norm_programs import NORMS

  assert len(ENTRIES) == sum(map(len, (NORMS, LINEARS, ATTENTIONS)))
  assert list(PROGRAMS) == list(EXPECTED)


@pytest.mark.parametrize("name", PROGRAMS)
def test_terms_are_the_steps(name, rng):
  assert check_terms(PROGRAMS[name](), rng) is None


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_primitive_operators(name):
  """A node is one step or a change of layout: nothing is fused before the search begins."""
  model, _ = onnx_model(ENTRIES[name].build)
  onnx.checker.check_model(model)
  assert operators(model) <= PRIMITIVE
  program = import_model(load_model(model))
  computing = {n.name: [s.op for s in n.steps if s.op not in FREE] for n in program.nodes}
  assert {name: ops for name, ops in computing.items() if len(ops) > 1} == {}


@pytest.mark.parametrize("name", PROGRAMS)
def test_sizes(name):
  made = PROGRAMS[name]()
  assert 1 <= len(made.inputs) <= MOST_INPUTS
  assert max(made.extents.values()) >= LARGE
  used = {u.attr for u in t.walk(made.terms) if u.op == t.INPUT}
  assert used == {i.name for i in made.inputs}


def test_programs_differ():
  """In what they compute or in their sizes: queries that share keys are one longer axis."""
  texts = {}
  for name, made in PROGRAMS.items():
    texts.setdefault(made().text, []).append(name)
  assert [names for names in texts.values() if len(names) > 1] == []
  assert len({made().structure for made in PROGRAMS.values()}) >= 38


def test_scales_are_exact():
  """1/sqrt(128) in fp16 is taken as the number, not as its rounding."""
  steps = PROGRAMS["attention_scaled"]().steps
  found = [i for s in steps for i in s.inputs if isinstance(i, Constant)]
  assert [(c.base, c.exponent) for c in found] == [(Fraction(1, 128), Fraction(1, 2))]


def test_declared_weights_are_initializers():
  """At a size where both can be had, the region of weights without data is that with data."""

  def layer(net):
    y = net.Add(net.MatMul(net.rms(net.input(8, 64), net.weight(64)), net.weight(64, 32)), 1.0)
    return net.Mul(net.Sigmoid(y), net.weight(32))

  real, light = Net(), ProgramNet()
  with_data = whole_region(import_model(load_model(real.model(layer(real)))))
  model = light.model(layer(light))
  declared = tuple(light.declared)
  assert len(declared) == 3
  without = whole_region(as_weights(import_model(load_model(model)), declared))
  assert without.text == with_data.text
  assert [i.is_weight for i in without.inputs] == [i.is_weight for i in with_data.inputs]
  plain = whole_region(import_model(load_model(model)))
  assert plain.text != with_data.text


# The discoveries are told from programs that lack them, on µGraphs written by hand.


@pytest.mark.parametrize(
  ("name", "expected"),
  [
    ("norm_linear", Expected(kernels=1, accumulators=2, contractions=1)),
    ("gated_mlp", Expected(kernels=1, contractions=2, accumulators=2)),
    ("lora", Expected(kernels=1, contractions=2, accumulators=2)),
    (
      "attention_online",
      Expected(kernels=1, ops=frozenset({"run_max", "acc_scaled"}), contractions=2),
    ),
    ("attention_split_kv", Expected(kernels=2, ops=frozenset({"run_max", "rmax"}), parts=True)),
  ],
)
def test_met(name, expected):
  assert expected.missing([golden(name).ugraph]) == ()


@pytest.mark.parametrize(
  ("name", "expected", "said"),
  [
    ("attention_split_kv", Expected(kernels=1), "at most 1 kernels: the best has 2"),
    ("norm_linear", Expected(1, ops=frozenset({"run_max"})), "a candidate with run_max"),
    ("norm_linear", Expected(1, accumulators=3), "3 accumulators of one loop: the most are 2"),
    # The second contraction of the low rank is behind the loop.
    ("lora", Expected(1, contractions=3), "3 contractions in one loop: the most are 2"),
    ("attention_online", Expected(1, parts=True), "partial results of a split reduction"),
  ],
)
def test_lacking(name, expected, said):
  assert expected.missing([golden(name).ugraph]) == (said,)


def test_any_candidate_will_do_but_the_best_counts_kernels():
  one, two = golden("attention_online").ugraph, golden("attention_split_kv").ugraph
  expected = Expected(kernels=1, parts=True)
  assert expected.missing([one, two]) == ()
  assert expected.missing([two, one]) == ("at most 1 kernels: the best has 2",)
  assert Expected(kernels=1).missing([]) == ("a candidate",)


def test_counts():
  online = golden("attention_online").ugraph
  assert accumulators(online.kernels[0]) == contractions(online.kernels[0]) == 2
  assert not has_parts(online)
  assert {"run_max", "prev", "matmul"} <= used_ops(online)
