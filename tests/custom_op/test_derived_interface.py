"""Interfaces made from the original: a record that was changed together with the plan is not believed."""

import json
from dataclasses import replace

import numpy as np
import pytest
from refused import refused
from small_models import Net, region_of, search_region

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.custom_op.derived_interface import Derived, check_interfaces
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.provenance import regenerate
from mirage_onnx.custom_op.sources import check_sources
from mirage_onnx.importer import load_model
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.target import H200
from tests.support.rewritten import tampered


def derived(original, model):
  file = ModelFile.read(model.SerializeToString())
  return check_interfaces(load_model(original), file.proto.graph, file.custom_nodes(), file.bundle())


def rewritten(model, kernels=1):
  region = region_of(model)
  candidates = [c.candidate for c in search_region(region).candidates]
  chosen = next(c for c in candidates if len(c.ugraph.kernels) == kernels)
  (compiled, *_), _ = compile_candidates(region, [chosen], H200, keep=1)
  return apply(load_model(model), [(region, compiled)], H200).model


def with_interface(k, change):
  """The recorded interface of plan ``k`` changed, and the plan that it makes."""

  def changed(bundle):
    record = json.loads(json.dumps(bundle.provenance[k]))
    change(record["interface"])
    plan = regenerate(record, "node").plan
    first = min(int(line.split()[1]) for line in bundle.plans[k].splitlines() if line.startswith("launch"))
    launches = tuple(replace(x, cubin=x.cubin + first) for x in plan.variants[0].launches)
    text = replace(plan, variants=(replace(plan.variants[0], launches=launches),)).to_text()
    plans, records = list(bundle.plans), list(bundle.provenance)
    plans[k], records[k] = text, record
    return replace(bundle, plans=tuple(plans), provenance=tuple(records))

  return changed


def test_all_of_a_chain(chain):
  assert derived(chain.original, chain.model) == Derived(3, 3)
  said = check_sources(
    chain.model.SerializeToString(), strict=True, original=chain.original.SerializeToString()
  )
  assert "the interfaces of 3 of 3 nodes follow from the original" in said.text and not said.unseen


def test_any_batch_and_length():
  net = Net()
  x, other = (net.input("batch", "seq", 64) for _ in range(2))
  h = net.LayerNormalization(net.Add(x, other), net.weight(64), axis=-1)
  model = net.model(net.MatMul(h, net.weight(64, 96)))
  made = rewritten(model)
  assert derived(model, made) == Derived(1, 1)

  def another(interface):
    head = interface["head"]
    equal = next(line for line in head.splitlines() if line.startswith("equal"))
    interface["head"] = head.replace(f"{equal}\n", "")

  with refused("SOURCE_MISMATCH", match="its recorded head are not those"):
    derived(model, tampered(made, with_interface(0, another)))


def test_two_inputs_of_one_type_change_places(chain):
  """Record, plan, hashes and digests say so together, and the node reads what it did."""

  def exchanged(interface):
    places = interface["inputs"]
    a, b = (n for n, k in places.items() if k in (1, 2))
    places[a], places[b] = places[b], places[a]

  k = 2
  record = ModelFile.read(chain.model.SerializeToString()).bundle().provenance[k]
  assert len(record["interface"]["inputs"]) == 3, record["interface"]
  forged = tampered(chain.model, with_interface(k, exchanged))
  check_sources(forged.SerializeToString(), strict=True)  # the record is believed without the original
  with refused("SOURCE_MISMATCH", match="its recorded inputs are not those of the original"):
    derived(chain.original, forged)


def test_the_node_reads_another_tensor(chain):
  model = chain.model
  node = next(n for n in model.graph.node if n.op_type == "MuGraph_2")
  node.input[2], node.input[3] = node.input[3], node.input[2]
  with refused("SOURCE_MISMATCH", match="its input 2 is"):
    derived(chain.original, model)


def test_another_original_gives_no_interface(chain):
  net = Net(np.float16)
  other = net.model(net.Relu(net.input(8, 64)))
  assert derived(other, chain.model) == Derived(3, 0)
  said = check_sources(chain.model.SerializeToString(), strict=True, original=other.SerializeToString())
  assert "the interfaces of 0 of 3 nodes follow" in said.text


def test_an_original_that_is_refused(chain):
  said = check_sources(chain.model.SerializeToString(), strict=True, original=b"\x3a\x00")
  assert "no interface was made from the original (NOT_ONNX)" in said.text


@pytest.mark.parametrize("field", ["head", "inputs", "outputs", "sizes"])
def test_every_field_counts(chain, field):
  from mirage_onnx.custom_op import derived_interface

  file = ModelFile.read(chain.model.SerializeToString())
  node = next(n for n in file.custom_nodes() if n.plan == 2)
  record = file.bundle().provenance[2]
  spoiled = {**record, "interface": {**record["interface"], field: {"x": 1}}}
  program = derived_interface.import_model(load_model(chain.original))
  maker = derived_interface.RegionMaker(program)
  region = derived_interface._region(program, maker, node, record, file.bundle())
  planned = derived_interface._planned(region, record)
  assert not list(derived_interface._differences(planned, node, record, program))
  (said,) = derived_interface._differences(planned, node, spoiled, program)
  assert field in said
