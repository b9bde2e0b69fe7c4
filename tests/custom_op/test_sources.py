"""The text behind the launches of a whole model."""

from dataclasses import replace

from refused import refused

from mirage_onnx.codegen.header import GENERATOR_VERSION
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.sources import check_sources, read_sources
from mirage_onnx.errors import MirageError
from tests.support.rewritten import tampered, with_plan, with_record


def refusal(model):
  with refused("SOURCE_MISMATCH") as caught:
    check_sources(model.SerializeToString(), strict=True)
  return caught.value.detail


def test_every_launch_has_its_kernel(chain):
  file = ModelFile.read(chain.model.SerializeToString())
  found = read_sources(file.custom_nodes(), file.bundle())
  assert sorted(found) == [0, 1, 2]
  names = [[k.source.name for k in row] for p in found.values() for row in p.kernels]
  assert names == [[s.name for s in c.sources] for c in chain.compiled]
  said = check_sources(chain.model.SerializeToString(), strict=True)
  assert said.startswith("3 kernels generated again") and said.endswith("byte for byte")


def test_a_model_without_kernels(chain):
  assert check_sources(chain.original.SerializeToString(), strict=True) == ""


def exchanged(bundle):
  return replace(bundle, cubins=(bundle.cubins[1], bundle.cubins[0], *bundle.cubins[2:]))


def test_images_do_not_change_places(chain):
  detail = refusal(tampered(chain.model, exchanged))
  assert chain.nodes[0] in detail
  assert chain.compiled[0].sources[0].name in detail and "image" in detail


def test_a_plan_launches_what_was_made_for_it(chain):
  mine, other = (chain.compiled[k].sources[0].name for k in (1, 0))
  detail = refusal(tampered(chain.model, with_plan(1, f"1 {mine}", f"0 {other}")))
  assert chain.nodes[1] in detail and other in detail


def test_a_plan_without_provenance(chain):
  cut = tampered(chain.model, lambda b: replace(b, provenance=b.provenance[:2]))
  assert chain.nodes[2] in refusal(cut)


def test_another_target(chain):
  model = chain.model
  for node in model.graph.node:
    node.domain = node.domain.replace("sm90a", "sm100a")
  assert "ai.mirage.v1.sm100a" in refusal(model)


def older(found):
  found["generator"] = GENERATOR_VERSION - 1
  found["kernels"][0]["sha256"] = "0" * 64


def test_an_older_model_is_an_error_only_where_its_text_is_needed(chain):
  model = tampered(chain.model, with_record(1, older))
  assert chain.nodes[1] in refusal(model)
  said = check_sources(model.SerializeToString(), strict=False)
  assert said.startswith("not checked") and str(GENERATOR_VERSION - 1) in said


def test_without_nvrtc_it_says_so(chain, monkeypatch):
  def missing(*_, **__):
    raise MirageError("COMPILER_MISSING", "no libnvrtc")

  monkeypatch.setattr("mirage_onnx.custom_op.provenance.compile_cubin", missing)
  said = check_sources(chain.model.SerializeToString(), strict=True)
  assert "not compiled again: no libnvrtc" in said
