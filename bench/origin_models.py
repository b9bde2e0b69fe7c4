"""24 more models of real size for ``bench/origins.py``, exported as those of ../shared/whole are.

    python bench/origin_models.py OUT.zip [NAME ...]

Needs torch 2.13, transformers 5.17 and onnxscript 0.7 (no GPU), in an environment of its own: other batches,
lengths, widths and depths of the kinds there, and GPT-2 and CLIP's text encoder.
"""

import sys
from functools import partial
from pathlib import Path

import transformers as tf

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "shared" / "whole"))
import export_graphs
import wm_models as w

#: Layers, hidden size, heads, inner size.
BASE, LARGE, DISTIL = (12, 768, 12, 3072), (24, 1024, 16, 4096), (6, 768, 12, 3072)
MINI6, MINI12, TINY = (6, 384, 12, 1536), (12, 384, 12, 1536), (2, 128, 2, 512)


def bert(name, batch, length, sizes):
  keys = ("layers", "hidden", "heads", "inner")
  return w._bert(name, batch, length, False, **dict(zip(keys, sizes, strict=True)))


def vit(name, batch, sizes, patch=16):
  layers, hidden, heads, inner = sizes
  config = tf.ViTConfig(
    hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=inner,
    patch_size=patch,
  )  # fmt: skip
  config.num_labels = 1000
  made = lambda: w.First(w._from(tf.ViTForImageClassification, config), "pixel_values")  # noqa: E731
  return w.Spec(name, made, {"pixel_values": ((batch, 3, 224, 224), "f16")}, "vit", heads, hidden)


def gpt2(name, length, sizes):
  layers, hidden, heads, _ = sizes
  config = tf.GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads)
  made = lambda: w.First(w._from(tf.GPT2Model, config), "input_ids")  # noqa: E731
  return w.Spec(name, made, {"input_ids": ((1, length), ("int", 50257))}, "gpt2", heads, hidden)


def clip_text(name, batch):
  from transformers.models.clip.modeling_clip import CLIPTextModel

  config = tf.CLIPTextConfig(
    hidden_size=768, intermediate_size=3072, num_hidden_layers=12, num_attention_heads=12
  )
  made = lambda: w.First(w._from(CLIPTextModel, config), "input_ids")  # noqa: E731
  return w.Spec(name, made, {"input_ids": ((batch, 77), ("int", 49406))}, "clip", 12, 768)


def whisper(name, layers, hidden, heads):
  from transformers.models.whisper.modeling_whisper import WhisperEncoder

  inner = 4 * hidden
  config = tf.WhisperConfig(
    vocab_size=51865, d_model=hidden, encoder_layers=layers, decoder_layers=layers,
    encoder_attention_heads=heads, decoder_attention_heads=heads, encoder_ffn_dim=inner,
    decoder_ffn_dim=inner, num_mel_bins=80,
  )  # fmt: skip
  made = lambda: w.First(w._from(WhisperEncoder, config), "input_features")  # noqa: E731
  return w.Spec(name, made, {"input_features": ((1, 80, 3000), "f16")}, "bart", heads, hidden)


def llama(hidden, inner, layers, heads, head_dim=128, tied=True):
  return tf.LlamaConfig(
    vocab_size=128256, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
    num_attention_heads=heads, num_key_value_heads=8, head_dim=head_dim, max_position_embeddings=8192,
    rms_norm_eps=1e-5, rope_parameters={"rope_type": "default", "rope_theta": 500000.0},
    tie_word_embeddings=tied,
  )  # fmt: skip


def qwen3(hidden, inner, layers):
  return tf.Qwen3Config(
    vocab_size=151936, hidden_size=hidden, intermediate_size=inner, num_hidden_layers=layers,
    num_attention_heads=16, num_key_value_heads=8, head_dim=128, max_position_embeddings=40960,
    rms_norm_eps=1e-6, rope_parameters={"rope_type": "default", "rope_theta": 1e6}, tie_word_embeddings=True,
  )  # fmt: skip


def decode(name, kind, config, past):
  inputs = w._decode_inputs(config, past, config.num_key_value_heads, config.head_dim, mask=False)
  made = lambda: w.DecodeAll(w._from(kind, config))  # noqa: E731
  return w.Spec(name, made, inputs, "gpt2", config.num_attention_heads, config.hidden_size)


def prefill(name, kind, config, length):
  inputs = {
    "input_ids": ((1, length), ("int", config.vocab_size)),
    "attention_mask": ((1, length), "ones"),
  }
  made = lambda: w.Prefill(w._from(kind, config))  # noqa: E731
  return w.Spec(name, made, inputs, "gpt2", config.num_attention_heads, config.hidden_size)


def models():
  """Name -> what makes its ``Spec``."""
  causal, plain = tf.LlamaForCausalLM, tf.LlamaModel
  one, three, eight = (2048, 8192, 4, 32, 64), (3072, 8192, 4, 24), (4096, 14336)
  return {
    "bert_large_1x384": (bert, 1, 384, LARGE),
    "bert_base_4x128": (bert, 4, 128, BASE),
    "bert_base_32x128": (bert, 32, 128, BASE),
    "bert_base_1x32": (bert, 1, 32, BASE),
    "distil6_1x256": (bert, 1, 256, DISTIL),
    "minilm_l12_1x64": (bert, 1, 64, MINI12),
    "minilm_l6_16x256": (bert, 16, 256, MINI6),
    "bert_tiny_8x128": (bert, 8, 128, TINY),
    "vit_small_b8": (vit, 8, (12, 384, 6, 1536)),
    "vit_tiny_b1": (vit, 1, (12, 192, 3, 768)),
    "vit_large_b2": (vit, 2, LARGE),
    "vit_base32_b32": (vit, 32, BASE, 32),
    "whisper_tiny_encoder": (whisper, 4, 384, 6),
    "whisper_medium_encoder": (whisper, 24, 1024, 16),
    "gpt2_1x256": (gpt2, 256, BASE),
    "gpt2_medium_1x1024": (gpt2, 1024, LARGE),
    "clip_text_b4": (clip_text, 4),
    "llama32_1b_4l_decode512": (decode, causal, llama(*one), 511),
    "llama32_3b_4l_decode2048": (decode, causal, llama(*three), 2047),
    "llama3_8b_2l_decode128": (decode, causal, llama(*eight, 2, 32, tied=False), 127),
    "llama32_1b_4l_prefill128": (prefill, plain, llama(*one), 128),
    "qwen3_1.7b_4l_decode1024": (decode, tf.Qwen3ForCausalLM, qwen3(2048, 6144, 4), 1023),
    "qwen3_0.6b_4l_prefill256": (prefill, tf.Qwen3Model, qwen3(1024, 3072, 4), 256),
    "llama3_8b_1l_prefill64": (prefill, plain, llama(*eight, 1, 32, tied=False), 64),
  }


def main():
  """As of ``export_graphs.py``, of these models."""

  def made(name, how, tiny):
    assert not tiny, "there are no tiny ones"
    return how[0](name, *how[1:])

  w.MODELS = {name: partial(made, name, how) for name, how in models().items()}
  export_graphs.main()


if __name__ == "__main__":
  main()
