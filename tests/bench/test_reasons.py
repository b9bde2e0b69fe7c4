"""Sentences without the names and numbers of one model."""

import pytest
from coverage_table.kinds import DECODE, ENCODER, OTHER, PREFILL, kind_of
from coverage_table.reasons import BY_CHOICE, NOT_REFUSED, general

from mirage_onnx.errors import REJECTIONS

NAMES = {"add_12", "/layer/MatMul", "linear", "0.5"}


@pytest.mark.parametrize(
  ("sentence", "want"),
  [
    ("Cast: 'attention_mask' is i64", "Cast: _ is i64"),
    ("add_12 is not a float tensor", "_ is not a float tensor"),
    ("reads /layer/MatMul, and more", "reads _ and more"),
    ("a linear map stays linear", "a linear map stays linear"),
    ("3.25 us predicted against 2 us, margin 20%", "N us predicted against N us, margin N%"),
    ("its nodes take 1e-05 us", "its nodes take N us"),
    ("needs f16 for mma m16n8k16", "needs f16 for mma m16n8k16"),
  ],
)
def test_general(sentence, want):
  assert general(sentence, NAMES) == want


def test_codes_are_the_catalogues_or_told():
  """A code of the table that is no refusal must not look like one."""
  assert not NOT_REFUSED.keys() & REJECTIONS.keys()
  assert NOT_REFUSED.keys() | REJECTIONS.keys() >= BY_CHOICE


def test_kinds():
  names = {
    DECODE: "llama3_decode_bfloat16 mamba_130m_decode_24_layers",
    PREFILL: "opt_prefill mamba_130m_prefill128",
    OTHER: "t5_decoder whisper_decoder",
    ENCODER: "whisper_encoder modernbert clip_text",
  }
  assert all(kind_of(n) == kind for kind, text in names.items() for n in text.split())
