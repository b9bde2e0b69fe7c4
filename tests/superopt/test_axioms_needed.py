"""Each golden program names the axioms it needs: without any one of them it is not derived.

Derivation does not depend on predicted times, so the table changes with the axioms only. What the
search finds first does: without an axiom that it needs, the best is predicted to be slower.
"""

import pytest
from found_programs import BOUND, found
from golden_derivations import is_derived, needed
from golden_texts import GOLDEN as FILE
from golden_texts import read_texts
from goldens import GOLDENS
from program_net import weight_values
from search_programs import ENTRIES, PROGRAMS

from mirage_onnx.ir.text import print_ugraph
from mirage_onnx.superopt.axioms import AXIOMS
from mirage_onnx.superopt.search import Stop, search
from mirage_onnx.superopt.space import ALL
from mirage_onnx.target import H200
from mirage_onnx.verify.prover import prover

GOLDEN = {g.name: g for g in GOLDENS}

#: Golden µGraph -> the axioms without which the search cannot derive it.
NEEDS = {
  "norm_linear": ("pull-out",),
  "norm_linear_cluster": ("pull-out",),
  "gated_mlp": (),
  "norm_gated_mlp": ("pull-out",),
  "pooled_linear": (),
  "lora": (),
  "lora_two_kernels": (),
  "residual_norm": (),
  "attention_online": ("pull-out", "running-maximum"),
  "attention_cluster": ("pull-out", "running-maximum"),
  "attention_split_kv": ("pull-out", "running-maximum", "split", "split-shifted"),
  "gqa_decode": ("pull-out",),
  "qknorm_attention": ("pull-out", "drop-shift"),
  "mla": ("pull-out", "split", "split-shifted"),
  "ngpt_step": ("split",),
  "elementwise_chain": (),
  "softmax_late_scale": (),
  "group_norm": (),
}

#: Golden µGraph -> why it is outside of what the search enumerates.
NOT_DERIVED = {
  "layernorm_linear": "no axiom writes sum((x - mean)^2) as sum(x^2) - n mean^2",
  "softmax_rows": "it loads the same input in the loop and, over the loop's axis, after it",
  "log_softmax": "as softmax_rows",
}


@pytest.mark.parametrize("name", NEEDS)
def test_a_golden_is_derived_from_the_axioms_that_it_needs(name):
  """No others are needed: the table is exact."""
  assert is_derived(GOLDEN[name])
  assert needed(GOLDEN[name]) == NEEDS[name]


@pytest.mark.parametrize("name", NOT_DERIVED)
def test_a_golden_outside_of_the_space(name):
  """If it is derived by now, its place is in ``NEEDS``."""
  assert not is_derived(GOLDEN[name])


def test_every_golden_is_in_a_table():
  assert sorted(GOLDEN) == sorted([*NEEDS, *NOT_DERIVED])


PARTS = ("pull-out", "split", "split-shifted")
ONLINE = ("pull-out", "running-maximum")
#: Program -> the axioms without any one of which the search finds nothing as fast; of others, none
#: is needed alone. (The second QKNorm attention is searched for minutes without each of its own.)
FOUND = {
  "batchnorm_linear": ("sum-of-add",),
  "groupnorm_linear": ("nested-sum",),
  "vocabulary_log_partition": ("split", "split-shifted"),
  "cosine_scores": ("pull-out", "flatten"),
  "lora_two_adapters": ("split",),
  "attention": (*ONLINE, "split", "split-shifted"),
  "attention_scaled": (*ONLINE, "split", "split-shifted"),
  "attention_additive_mask": ONLINE,
  "attention_causal": ONLINE,
  "attention_softcap": (*ONLINE, "drop-shift", "split-shifted"),
  "multi_head": ONLINE,
  "grouped_query": (*ONLINE, "split", "split-shifted"),
  "multi_query": PARTS,
  "decode": PARTS,
  "speculative_decode": ("pull-out", "split"),
  "qknorm_rms_attention": (*ONLINE, "flatten", "drop-shift", "split-shifted"),
  "mla_absorbed": PARTS,
  "mla_with_linears": (*PARTS, "push-in"),
}


@pytest.mark.slow
@pytest.mark.parametrize(("name", "axiom"), [(n, a) for n, own in FOUND.items() for a in own])
def test_a_found_golden_is_not_found_without(name, axiom):
  golden = read_texts(FILE)[f"test_goldens_found/test_best_program_{name}"]
  best = found(name).candidates[0].candidate
  assert print_ugraph(best.ugraph) == golden
  region, others = PROGRAMS[name](), tuple(a for a in AXIOMS if a.name != axiom)
  assert len(others) == len(AXIOMS) - 1
  prove = prover(region, weight_values(ENTRIES[name].build), derived=True)
  result = search(region, H200, prove, bound=BOUND, space=ALL, axioms=others, budget_s=900.0)
  assert result.report.stop is Stop.EXHAUSTED
  assert golden not in {print_ugraph(v.candidate.ugraph) for v in result.candidates}
  assert all(v.candidate.predicted_us > best.predicted_us for v in result.candidates)
