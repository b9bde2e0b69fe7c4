"""Each golden program names the axioms it needs: without any one of them it is not derived.

Derivation does not depend on predicted times, so the first table changes with the axioms only. The
second is of whole searches. ``python bench/axioms.py`` prints both.
"""

import pytest
from axiom_needs import best_us, is_found, searched
from golden_derivations import is_derived, needed
from goldens import GOLDENS
from search_programs import PROGRAMS

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

#: Program of ``search_programs`` -> the axioms without which its best candidate is not found, and
#: nothing as fast is.
FOUND_NEEDS = {"attention": ("pull-out", "running-maximum")}


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


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "axiom"), [(name, a) for name, found in FOUND_NEEDS.items() for a in found]
)
def test_the_best_program_is_not_found_without(name, axiom):
    best, less = searched(name), searched(name, axiom)
    assert not is_found(best.candidates[0].candidate.ugraph, less)
    assert best_us(less) > best_us(best)


def test_the_programs_of_the_table_exist():
    assert set(FOUND_NEEDS) <= set(PROGRAMS)
