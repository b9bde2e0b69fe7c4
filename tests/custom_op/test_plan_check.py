"""Every field of every line of a plan that was really made, altered alone, with every hash right again."""

from dataclasses import replace

import onnx
import pytest
from altered_plans import alterations
from refused import refused
from small_models import Net, region_of, search_region

from mirage_onnx import cli
from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.custom_op import read_bundle
from mirage_onnx.custom_op.sources import check_sources
from mirage_onnx.errors import Exit, MirageError
from mirage_onnx.importer import load_model
from mirage_onnx.importer.external import read_tensor
from mirage_onnx.rewrite.apply import apply
from mirage_onnx.rewrite.model import BUNDLE_NAME
from mirage_onnx.target import H200
from tests.support.rewritten import chain, tampered


@pytest.fixture(scope="module")
def dynamic():
  """Two kernels with a workspace between them, for any batch and length, as the search finds them."""
  net = Net()
  x, other = (net.input("batch", "seq", 256) for _ in range(2))
  h = net.LayerNormalization(net.Add(x, other), net.weight(256), axis=-1)
  model = net.model(net.MatMul(h, net.weight(256, 512)))
  region = region_of(model)
  (compiled, *_), _ = compile_candidates(
    region, [c.candidate for c in search_region(region).candidates[:1]], H200, keep=1
  )
  return model, apply(load_model(model), [(region, compiled)], H200).model


@pytest.fixture(scope="module")
def static():
  made = chain()
  return made.original, made.model


def plan_of(model, k):
  (stored,) = (t for t in model.graph.initializer if t.name == BUNDLE_NAME)
  return read_bundle(read_tensor(stored, None).tobytes()).plans[k]


def with_text(k, text):
  def go(bundle):
    return replace(bundle, plans=(*bundle.plans[:k], text, *bundle.plans[k + 1 :]))

  return go


@pytest.mark.parametrize(("made", "k", "least"), [("static", 2, 100), ("dynamic", 0, 500)])
def test_every_field_of_every_line_is_compared(request, made, k, least):
  model = request.getfixturevalue(made)[1]
  text = plan_of(model, k)
  assert check_sources(model.SerializeToString(), strict=True).unseen == ""
  found = alterations(text)
  assert len(found) > least
  for new, what in found.items():
    with pytest.raises(MirageError) as caught:
      check_sources(tampered(model, with_text(k, new)).SerializeToString(), strict=True)
    is_damage = "it has no cubin" in caught.value.detail
    assert caught.value.code == ("BUNDLE_INVALID" if is_damage else "SOURCE_MISMATCH"), what
  heads = {line.split(" ")[0] for line in text.splitlines()}
  assert made == "static" or heads == {"plan", "input", "equal", "output", "workspace", "variant", "launch"}


@pytest.mark.parametrize(
  ("old", "new", "said"),
  [
    ("equal d1.0 d2.0\n", "", "the generator makes 'equal d1.0 d2.0'"),
    (" w:0#", " w:256#", "of its plan has 256"),
    ("output f16 d1.0 d1.1 512", "output f16 d1.1 d1.0 512", "line 8 of its plan is"),
    (" i1#d1.0,d1.1,*,512,* i2#", " i2#d1.0,d1.1,*,512,* i1#", "the generator makes"),
    ("workspace d1.0,d1.1,*,512,*", "workspace d1.0,d1.1,*,513,*", "of its plan is 'workspace"),
  ],
)
def test_the_command_ends_with_1(dynamic, tmp_path, capsys, old, new, said):
  original, model = dynamic
  a, b = tmp_path / "a.onnx", tmp_path / "b.onnx"
  onnx.save(original, a)
  text = plan_of(model, 0)
  assert old in text
  onnx.save(tampered(model, with_text(0, text.replace(old, new, 1))), b)
  assert cli.main(["verify", str(a), str(b)]) == Exit.CHECK_FAILED == 1
  told = " ".join(capsys.readouterr().err.split())
  assert "SOURCE_MISMATCH" in told and said in told


def test_a_record_that_was_altered_too(dynamic):
  """Plan and interface agree with each other, but not with the µGraph."""
  model = dynamic[1]
  old, new = "output f16 d1.0 d1.1 512", "output f16 d1.0 d1.1 256"

  def change(bundle):
    plan = bundle.plans[0].replace(old, new, 1)
    (record,) = bundle.provenance
    head = record["interface"]["head"].replace(old, new, 1)
    record = {**record, "interface": {**record["interface"], "head": head}}
    return replace(bundle, plans=(plan,), provenance=(record,))

  with refused("SOURCE_MISMATCH", "tensor o0 takes"):
    check_sources(tampered(model, change).SerializeToString(), strict=True)
