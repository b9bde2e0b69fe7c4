"""A wrong kernel in a rewritten model is found and named."""

import numpy as np
import onnx
import pytest
from refused import refused

from mirage_onnx.custom_op import compare, model_check, widen
from mirage_onnx.custom_op.compare import compare_models
from mirage_onnx.custom_op.compare_inputs import KINDS
from mirage_onnx.custom_op.comparison import ERRORS_ADD_UP
from mirage_onnx.custom_op.edge_inputs import EDGES
from mirage_onnx.custom_op.model_run import run_session
from mirage_onnx.custom_op.session import launches
from mirage_onnx.custom_op.sources import check_sources
from tests.support.rewritten import Rewritten, permuted, tampered, with_plan

NORMAL = {"x0": np.random.default_rng(0).standard_normal((8, 64)).astype(np.float16)}


def check(chain, model, **options):
  original, other = chain.original.SerializeToString(), model.SerializeToString()
  return compare_models(original, other, emulate=True, draws=1, **options)


def test_right_kernels(chain):
  found = check(chain, chain.model, bisect=True)
  assert found.passed and found.first_divergence is None and found.note == ""
  assert [n.path for n in found.nodes] == ["emulated"] * 3
  assert [r.node for r in found.regions] == list(chain.nodes)
  assert [r.output.name for r in found.regions] == [r.outputs[0].tensor.name for r in chain.regions]
  assert all(r.output.needed_rtol < 2e-3 for r in found.regions)
  assert set(found.inputs) == {"normal 0", *KINDS, *EDGES}


def constant(chain):
  """A wrong constant of the search, in every record: text, image and hashes agree."""
  model = chain.using({1: chain.recompiled(1, "const[-1/2]", "const[-9/16]")})
  assert check_sources(model.SerializeToString(), strict=True).text.endswith("byte for byte")
  return model


def other_kernel(chain):
  """The µGraph of another region under the node, with its own provenance."""
  model = tampered(chain.model, permuted([0, 0, 2]))
  assert check_sources(model.SerializeToString(), strict=True).text.endswith("byte for byte")
  return model


def short_grid(chain):
  """The last block is not launched: what it would write stays poisoned."""
  return tampered(chain.model, with_plan(1, "grid 64 8 1", "grid 63 8 1"))


def exchanged_inputs(chain):
  """Two tensors of one shape in each other's place."""
  return tampered(chain.model, with_plan(2, "args i2#1024 i0#8192 i1#1024", "args i1#1024 i0#8192 i2#1024"))


@pytest.mark.parametrize(
  ("corrupt", "k", "reason"),
  [
    (constant, 1, ""),
    (other_kernel, 1, ""),
    (short_grid, 1, "nan instead of"),
    (exchanged_inputs, 2, ""),
  ],
)
def test_a_wrong_kernel_is_named(chain, corrupt, k, reason):
  found = check(chain, corrupt(chain), inputs=NORMAL)
  assert not found.passed
  assert found.first_divergence == chain.nodes[k]
  wrong = [r for r in found.regions if not r.output.passed]
  assert [r.node for r in wrong] == [chain.nodes[k]], "later nodes get the original's values"
  assert reason in wrong[0].output.reason
  assert not found.outputs[0].passed
  assert found.to_dict()["first_divergence"] == chain.nodes[k]


@pytest.mark.parametrize("corrupt", [lambda chain: chain.model, other_kernel], ids=["right", "wrong"])
def test_a_kernel_may_round_less_than_its_region(chain, corrupt, monkeypatch):
  """Where the original rounds so much that it is no measure, the original in fp32 is."""

  def coarse(session, feeds):
    found = run_session(session, feeds)
    ours = bool(launches(session))
    return found if ours else {n: np.round(x * 4) / 4 for n, x in found.items()}

  monkeypatch.setattr(compare, "run_session", coarse)
  monkeypatch.setattr(model_check, "run_session", coarse)
  found = check(chain, corrupt(chain), inputs=NORMAL)
  right = corrupt is not other_kernel
  assert [r.output.passed for r in found.regions] == [True, right, True]
  assert found.passed == right and min(o.needed_rtol for o in found.outputs) > 1e-2
  assert all("from its fp32 form" in r.output.reason for r in found.regions if r.output.passed)
  assert not check(chain, corrupt(chain), inputs=NORMAL, rtol=1e-2).passed, "as the user says"
  monkeypatch.setattr(widen, "MOST_BYTES", 100)  # in fp32 it is too large
  assert not any(r.output.passed for r in check(chain, corrupt(chain), inputs=NORMAL).regions)


def test_the_first_of_several(chain):
  wrong = {0: chain.recompiled(0, "const[1049/1048576]", "const[1]"),
           1: chain.recompiled(1, "const[-1/2]", "const[-9/16]")}  # fmt: skip
  found = check(chain, chain.using(wrong), inputs=NORMAL)
  assert found.first_divergence == chain.nodes[0]


def test_an_error_that_the_rest_of_the_model_hides(chain):
  """relu(x W1) W2 is drowned: y = g W3 + h with W3 = 0 does not depend on g."""
  original = onnx.ModelProto()
  original.CopyFrom(chain.original)
  (weight,) = (t for t in original.graph.initializer if t.name == chain.regions[2].inputs[0].tensor.name)
  weight.raw_data = bytes(len(weight.raw_data))
  hidden = Rewritten(original, chain.regions, chain.compiled)
  wrong = hidden.using({1: chain.recompiled(1, "const[-1/2]", "const[-9/16]")})
  found = check(hidden, wrong, inputs=NORMAL)
  assert all(o.passed for o in found.outputs)
  assert not found.passed and found.first_divergence == chain.nodes[1]


def test_only_some_inputs_show_it(chain):
  """An epsilon of 0 shows on zeros only: bisection looks at every input, the default at one."""
  model = chain.using({0: chain.recompiled(0, "const[1049/1048576]", "const[0]")})
  assert check(chain, model, inputs=NORMAL).passed
  plain, all_inputs = check(chain, model), check(chain, model, bisect=True)
  assert not plain.passed and plain.first_divergence is None and plain.note == ERRORS_ADD_UP
  assert all_inputs.first_divergence == chain.nodes[0]
  assert all_inputs.regions[0].output.worst in ("zeros", "small")


NORMALISED = """\
  %15 = mul %10 %14 : f32[a0,a2] post uniform
  %16 = max %0 %15 : f32[a0,a2] post uniform
  %17 = cast %16 : f16[a0,a2] post uniform
  save o0 = %17 omap=a2,a0
"""
#: The product is rounded to 16 bits before it is normalised: it overflows where the original does not.
OVERFLOWS = """\
  %15 = cast %14 : f16[a0,a2] post uniform
  %16 = cast %15 : f32[a0,a2] post uniform
  %17 = mul %10 %16 : f32[a0,a2] post uniform
  %18 = max %0 %17 : f32[a0,a2] post uniform
  %19 = cast %18 : f16[a0,a2] post uniform
  save o0 = %19 omap=a2,a0
"""


def test_a_planted_overflow_is_found(chain, monkeypatch):
  """Only at the edge of what the original takes: every other input passes."""
  model = chain.using({0: chain.recompiled(0, NORMALISED, OVERFLOWS)})
  found = check(chain, model)
  assert not found.passed and found.first_divergence == chain.nodes[0]
  first = found.regions[0].output
  assert first.worst == "edge" and "where the original is finite" in first.reason
  monkeypatch.setattr(compare, "edge_inputs", lambda *_: ())
  before = check(chain, model)
  assert before.passed and set(before.inputs) == {"normal 0", *KINDS}
  assert all(n.launches > len(KINDS) for n in before.nodes)


def test_errors_outside_of_the_regions_are_told_apart(chain):
  model = chain.model
  name = model.graph.output[0].name
  model.graph.node[-1].output[0] = "before"
  model.graph.node.append(onnx.helper.make_node("Neg", ["before"], [name]))
  model.graph.value_info.add(name="before").type.CopyFrom(model.graph.output[0].type)
  with refused("SHAPES_DIFFER", "no tensor 'before'"):
    check(chain, model)


def test_a_fault_names_node_and_kernel(chain):
  model = tampered(chain.model, with_plan(0, "args i0#1024 i1#8192", "args i1#8192 i0#1024"))
  with refused("EMULATION_FAILED") as caught:
    check(chain, model)
  line = caught.value.line()
  assert "\n" not in line
  assert chain.nodes[0] in line and chain.compiled[0].sources[0].name in line


def test_bodies_are_not_checked_as_kernels(chain):
  original = chain.original.SerializeToString()
  found = compare_models(original, chain.model.SerializeToString(), bisect=True)
  assert found.passed and found.regions == ()
  assert "no kernel ran" in found.note
