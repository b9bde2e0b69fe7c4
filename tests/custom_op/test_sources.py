"""The text behind the launches of a whole model."""

from dataclasses import replace

import pytest
from refused import refused

from mirage_onnx.codegen.whole_text import GENERATOR_VERSION
from mirage_onnx.custom_op.model_nodes import ModelFile
from mirage_onnx.custom_op.sources import SourceCheck, check_sources, read_sources
from mirage_onnx.errors import MirageError
from tests.support.rewritten import any_rows, tampered, with_plan, with_record


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
  assert said.text.startswith("3 kernels generated again") and said.text.endswith("byte for byte")
  assert not said.unseen


def test_a_model_without_kernels(chain):
  assert check_sources(chain.original.SerializeToString(), strict=True) == SourceCheck()


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


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ("pdl 1", "pdl 0", "its plan has pdl 0, the generator 1"),
    ("smem 0", "smem 4096", "its plan has smem 4096, the generator 0"),
    ("block 32", "block 64", "its plan has block 64, the generator 32"),
    ("cluster 1", "cluster 2", "its plan has cluster 2, the generator 1"),
    ("grid 64 ", "grid 63 ", "its plan has grid (63, "),
    ("output f16", "output i16", "is tensor o0 of f16, o0#1024 of its plan is i16"),
    ("input f16", "input bf16", "of f16, i0#1024 of its plan is bf16"),
    ("output f16 8", "output f16 7", "takes 1024 bytes, o0#1024 of its plan has 896"),
    ("args i0#1024 i1#8192", "args i1#8192 i0#1024", "its plan says 8192"),
    ("args i0#1024 i1#8192", "args i1#1024 i0#8192", "i0#8192 of its plan has 1024"),
    ("i1#8192", "i1#8190", "takes 8192 bytes, i1#8190 of its plan says 8190"),
    ("o0#1024", "o0#1024 i32:1", "its plan has arguments 4, the generator 3"),
    ("o0#1024", "i64:1", "is tensor o0, its plan has i64:1"),
    ("variant\n", "variant 0\nvariant\n", "its plan has 2 variants, the generator makes one"),
  ],
)
def test_altered_launches(chain, old, new, said):
  detail = refusal(tampered(chain.model, with_plan(0, old, new)))
  assert chain.nodes[0] in detail and said in detail


def test_dropped_and_doubled_launches(chain):
  (name,) = (s.name for s in chain.compiled[0].sources)
  text = ModelFile.read(chain.model.SerializeToString()).bundle().plans[0]
  line = next(line for line in text.splitlines() if line.startswith("launch"))
  for new in ("", f"{line}\n{line}\n"):
    detail = refusal(tampered(chain.model, with_plan(0, f"{line}\n", new)))
    assert f"the generator makes ['{name}']" in detail


def test_a_plan_of_any_rows():
  made = any_rows()
  assert not check_sources(made.model.SerializeToString(), strict=True).unseen
  for old, new, said in (
    ("grid d0.0 ", "grid 9 ", "the generator"),
    ("output f16 d0.0", "output f16 1", "bytes, o0#d0.0,128,* of its plan has"),
    (" i32:d0.0", " i32:1", "the generator"),
    ("i0#d0.0,128,*", "i0#d0.0,64,*", "i0#d0.0,64,* of its plan says 64"),
  ):
    assert said in refusal(tampered(made.model, with_plan(0, old, new)))


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
  assert said.text.startswith("not checked") and str(GENERATOR_VERSION - 1) in said.text
  assert said.unseen


def test_a_generator_that_is_no_number(chain):
  model = tampered(chain.model, with_record(1, lambda found: found.update(generator=[])))
  assert "made by generator []" in check_sources(model.SerializeToString(), strict=False).unseen


def test_without_nvrtc_it_says_so(chain, monkeypatch):
  def missing(*_, **__):
    raise MirageError("COMPILER_MISSING", "no libnvrtc")

  monkeypatch.setattr("mirage_onnx.custom_op.provenance.compile_cubin", missing)
  said = check_sources(chain.model.SerializeToString(), strict=True)
  assert "not compiled again: no libnvrtc" in said.text
  assert said.unseen == "images not compiled again: no libnvrtc"
