"""Each golden program names the axioms it needs: without any one of them it is not derived.

Derivation does not depend on predicted times, so the table changes with the axioms only. What the
search finds first does: ``test_goldens_found.py``.
"""

import pytest
from golden_derivations import is_derived, needed
from goldens import GOLDENS

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
