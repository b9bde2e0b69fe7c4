"""Text generated again: what ties it to the record and to the image."""

from dataclasses import replace
from typing import Any

import pytest
from refused import refused
from small_models import Net

from mirage_onnx.compiler import candidates
from mirage_onnx.custom_op import provenance
from mirage_onnx.custom_op.launch_plan import plan_candidate
from mirage_onnx.custom_op.provenance import check_images, record, regenerate
from mirage_onnx.importer import import_model, load_model
from mirage_onnx.match.whole import whole_region
from mirage_onnx.target import H200

Record = dict[str, Any]


def recorded(region, compiled):
  planned = plan_candidate(region, compiled.candidate, compiled.sources)
  return record(region, compiled, H200, planned.interface)


@pytest.fixture
def made(chain):
  return recorded(chain.regions[0], chain.compiled[0])


def refusal(found):
  with refused("SOURCE_MISMATCH") as caught:
    regenerate(found, "node 'n'")
  assert caught.value.detail.startswith("node 'n': ")
  return caught.value.detail


def test_the_text_is_generated_again(chain, made):
  found = regenerate(made, "node 'n'")
  compiled = chain.compiled[0]
  assert tuple(k.source for k in found.kernels) == compiled.sources
  assert found.target is H200
  (kernel,) = found.kernels
  assert kernel.arg_bytes == (8 * 64 * 2, 64 * 64 * 2, 8 * 64 * 2)
  assert kernel.image_sha256 == provenance.sha256(compiled.cubins[0].image)


def replaced(key, old, new):
  def go(found):
    assert old in found[key]
    found[key] = found[key].replace(old, new, 1)

  return go


def set_param(found):
  found["params"][0] = found["params"][0].replace("warps=1", "warps=2")


def set_hash(found):
  digest = found["kernels"][0]["sha256"]
  found["kernels"][0]["sha256"] = ("0" if digest[0] != "0" else "1") + digest[1:]


@pytest.mark.parametrize(
  ("change", "said"),  # None: no refusal
  [
    (replaced("ugraph", "rsqrt", "sqrt"), "not the one that was compiled"),
    (replaced("ugraph", "%5 = cast", "%5 = caste"), "_k0"),
    (replaced("ugraph", "imap=-,a0", "imap=a0,-"), "_k0"),
    (replaced("ugraph", "kernel k0", "kernel k0(){abort();}//"), "not an identifier"),
    (replaced("ugraph", "tensor i0", "tensor i0;abort();"), "not an identifier"),
    (replaced("ugraph", "grid=a2", "grid=a2*f()"), "not an identifier"),
    (lambda r: r.update(params=["tile=0,0 cluster=1 loop_tile=0 warps=1 stages=1"]), "_k0"),
    (lambda r: r.update(params=["tile=1,1 cluster=1 loop_tile=0 warps=-1 stages=1"]), "_k0"),
    (set_param, "not the one that was compiled"),
    (set_hash, "not the one that was compiled"),
    (replaced("region", "a0=8", "a0=9"), "makes the kernels"),
    (lambda r: r.update(generator=r["generator"] + 1), None),
    (lambda r: r.update(target="h300"), "no target"),
    (lambda r: r["kernels"].clear(), "makes the kernels"),
    (lambda r: r["kernels"][0].pop("image_sha256"), "cannot be read"),
    (lambda r: r.update(params=["tile"]), "cannot be read"),
    (lambda r: r.update(params=[]), "cannot be read"),
    (lambda r: r.update(ugraph="ugraph 2"), "cannot be read"),
    (lambda r: r.update(region="region"), "cannot be read"),
    (lambda r: r.update(kernels=7), "cannot be read"),
    (lambda r: r.pop("interface"), "cannot be read"),
    (lambda r: r.update(interface=[]), "cannot be read"),
    (lambda r: r["interface"].update(head="plan 1\n"), "cannot be read"),
    (lambda r: r["interface"].update(sizes={"a0": "d9.0"}), "cannot be read"),
    (lambda r: r["interface"].update(inputs={}), "cannot be read"),
    (lambda r: r["interface"]["inputs"].update(i0=7), "cannot be read"),
  ],
)
def test_one_token_is_enough(made, change, said):
  change(made)
  if said is None:  # a version alone is no reason: the text is what counts
    regenerate(made, "node 'n'")
  else:
    assert said in refusal(made)


def test_another_generator_is_named(made):
  set_hash(made)
  made["generator"] += 1
  assert f"version {made['generator']} of the generator, this is" in refusal(made)


def test_one_token_of_the_generator(made, monkeypatch):
  """The other side of the comparison: a generator that writes something else."""
  real = candidates.emit_kernel

  def emit(*args):
    source = real(*args)
    changed = source.text.replace("ptx::rsqrt(", "ptx::rcp(", 1)
    assert changed != source.text
    return replace(source, text=changed)

  monkeypatch.setattr(candidates, "emit_kernel", emit)
  assert f"kernel {made['kernels'][0]['name']}" in refusal(made)


def test_images_are_made_of_their_text(chain):
  records = [recorded(r, c) for r, c in zip(chain.regions, chain.compiled, strict=True)]
  plans = [(f"node '{i}'", regenerate(r, "")) for i, r in enumerate(records)]
  images = [c.cubins[0].image for c in chain.compiled]
  assert check_images(plans, images) == ()


def test_a_forged_image_is_found(chain, made):
  """Record and image agree with each other, but the image is not what the text compiles to."""
  forged = chain.compiled[0].cubins[0].image + b"\0"
  made["kernels"][0]["image_sha256"] = provenance.sha256(forged)
  with refused("SOURCE_MISMATCH", "compiles to another image") as caught:
    check_images([("node 'n'", regenerate(made, ""))], [forged])
  assert chain.compiled[0].sources[0].name in caught.value.detail


def test_images_of_another_compiler_are_not_compared(made):
  made["nvrtc"] = "13.0.0"
  made["kernels"][0]["image_sha256"] = "0" * 64
  (note,) = check_images([("node 'n'", regenerate(made, ""))], [])
  assert "NVRTC 13.0.0" in note and provenance.chosen_version() in note


def test_a_region_of_scalars_has_no_axes():
  """Its line of axes is empty, and a right model of one was refused as altered."""
  net = Net()
  x = net.input()
  whole = whole_region(import_model(load_model(net.model(net.Mul(net.Exp(x), x)))))
  assert provenance.recorded_extents(whole.text) == ({}, ())
