"""A model of three regions with kernels for three targets, of which two leave a region alone."""

from functools import cache

from mirage_onnx.compiler.candidates import compile_candidates
from mirage_onnx.importer import load_model
from mirage_onnx.rewrite.apply import Layer, apply
from mirage_onnx.target import H200, get_target
from tests.support.rewritten import chain

TARGETS = (H200, get_target("a100"), get_target("rtx4090"))
#: By target, the regions that it replaces.
REPLACED = {"sm90a": (0, 1), "sm80": (0, 1, 2), "sm89": (1, 2)}
#: And the compute capability of its GPUs.
CAPABILITY = {"sm90a": (9, 0), "sm80": (8, 0), "sm89": (8, 9)}


@cache
def three_regions():
  return chain()


@cache
def kernels(target):
  """Of every region, its kernels for a target."""
  three, found = three_regions(), []
  for region, compiled in zip(three.regions, three.compiled, strict=True):
    done, refused = compile_candidates(region, [compiled.candidate], target, keep=1)
    assert not refused
    found.append((region, done[0]))
  return tuple(found)


@cache
def several():
  """The model; ``REPLACED`` says what is in it. Who changes it takes a copy."""
  layers = [Layer(t, tuple(kernels(t)[k] for k in REPLACED[t.suffix])) for t in TARGETS]
  done = apply(load_model(three_regions().original), layers[0].chosen, TARGETS[0], others=layers[1:])
  assert (done.used, done.others, done.refused) == ((0, 1), ((0, 1, 2), (0, 1)), {})
  return done.model
