"""Layers of equal structure: their regions are searched once, and replaced in every layer."""

import pytest
from decoder_layers import Decoder, llama_decode
from small_models import matches

import mirage_onnx
from mirage_onnx import events

TINY = Decoder(hidden=64, inner=128, heads=4, past=8, vocabulary=100)


def keys(layers):
  return {c.region.key for c in matches(llama_decode(layers, TINY)).candidates}


def test_more_layers_have_the_same_regions():
  """From three layers on: the first and the last one are special, and regions span two.

  A single layer has both ends in a few regions.
  """
  three = keys(3)
  assert keys(4) == three
  assert len(keys(1) - three) <= 4


@pytest.mark.slow
def test_every_layer_gets_the_same_kernels():
  searched = []

  def emit(event):
    if isinstance(event, events.RegionDone):
      searched.append(event.region)

  result = mirage_onnx.optimize(llama_decode(32), target="h200", emit=emit)
  assert len(searched) == len(set(searched)) > 0
  counts = [r["count"] for r in result.report["regions"] if r["status"] == "replaced"]
  # What is not in every layer is at the ends, or spans two: then it is in every other one.
  assert sum(c for c in counts if c >= 15) >= 0.95 * sum(counts)
