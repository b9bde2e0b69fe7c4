"""Every rule of ``ir/ugraph.py``, broken one at a time: an edit of a text, and the sentence."""

import pytest
from golden_texts import texts_of
from goldens import edited, golden

from mirage_onnx.ir.spec import check_interface, check_ugraph

SPLIT = "attention_split_kv"


def broken():
  """Rows of the packed text: the µGraph, what of its text becomes what, the sentence."""
  for line in texts_of("rules")["broken"].splitlines():
    match line.replace("\\n", "\n").split(" | "):
      case [graph]:
        name = graph
      case row:
        yield name, *row


@pytest.mark.parametrize(("name", "old", "new", "sentence"), list(broken()))
def test_a_broken_rule_is_named(name, old, new, sentence):
  graph = golden(name).ugraph
  assert check_ugraph(graph) is None
  found = check_ugraph(edited(graph, (old, new)))
  assert found is not None and found.code == "NOT_EQUIVALENT"
  assert sentence in found.reason


@pytest.mark.parametrize(
  ("old", "new", "sentence"),
  [
    ("tensor i0 f16[a1,a0] weight", "tensor i0 f16[a1,a0] input", "('a0', 'a1') in memory"),
    ("tensor i1 f16[a2,a0] input", "tensor i1 f16[a2,a0] weight", "i1 is no initializer"),
    ("tensor o0 f16[a2,a1]", "tensor o0 f16[a1,a2]", "o0 is over ('a2', 'a1') in memory"),
    ("tensor o0 f16", "tensor o0 bf16", "o0 is f16, not bf16"),
    ("tensor i2 f16[a0]", "tensor i2 f16[a9]", "i2 has an axis of unknown extent"),
    ("tensor i2 ", "tensor i9 ", "the region has no weight i9"),
    ("i2 f16[a0] weight", "i2 f16[a0] temp", "i2 is both a temp and a region tensor"),
    ("o0 f16[a2,a1] output", "t0 f16[a2,a1] temp", "the graph writes [], not ['o0']"),
  ],
)  # fmt: skip
def test_the_interface_is_the_region_s(old, new, sentence):
  given = golden("norm_linear")
  found = check_interface(given.region, edited(given.ugraph, (old, new)))
  assert found is not None and sentence in found.reason


def test_blocks_that_write_one_part_are_refused():
  tensor = ("tensor t1 f32[a0,a1,a3/k0]", "tensor t1 f32[a0,a1]")
  save = ("%14 omap=a3/k0,a0", "%14 omap=a3,a0")
  found = check_ugraph(edited(golden(SPLIT).ugraph, tensor, save))
  assert found is not None and "differ in ['a3'] write the same part of t1" in found.reason


def test_a_part_over_an_axis_that_the_region_lacks_is_refused():
  given = golden(SPLIT)
  assert check_interface(given.region, given.ugraph) is None
  found = check_interface(given.region, edited(given.ugraph, ("a3/k0", "a9/k0")))
  assert found is not None and "t0 has an axis of unknown extent" in found.reason
