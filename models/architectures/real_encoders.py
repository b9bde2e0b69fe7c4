"""Encoders at real width: text, vision, audio."""

import torch
import transformers as tf
from real_common import (
  TEXT_DYNAMIC,
  TEXT_LIMITS,
  First,
  Pooled,
  built,
  noise,
  text_inputs,
)
from real_export import Real

VOCABULARY = 8192
_BASE = {"vocab_size": VOCABULARY, "num_hidden_layers": 2}
_LARGE = _BASE | {"hidden_size": 1024, "num_attention_heads": 16, "intermediate_size": 4096}


def _text(cls, config, batch, length, attention="sdpa", wrap=None, **more):
  def make():
    model = built(cls, config(), attention, **more)
    given = text_inputs(batch, length)
    return (wrap(model) if wrap else First(model, *given)), given

  return make


def _image(cls, config, batch, size, attention="sdpa", **more):
  def make():
    given = {"pixel_values": noise(batch, 3, size, size)}
    return First(built(cls, config(), attention, **more), *given), given

  return make


def _text_model(name, make, dtype="fp16", **more):
  return Real(name, make, dtype, TEXT_LIMITS, **more)


def _dynamic(name, make, dtype="fp16", batch=1, seq=128, **more):
  return Real(name, make, dtype, TEXT_LIMITS, TEXT_DYNAMIC, {"batch": batch, "seq": seq}, **more)


def _layers():
  layer = torch.nn.TransformerEncoderLayer(768, 12, 3072, batch_first=True, activation="gelu")
  model = torch.nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
  return model, {"x": noise(2, 128, 768)}


def _whisper():
  from transformers.models.whisper.modeling_whisper import WhisperEncoder

  config = tf.WhisperConfig(
    d_model=1280,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=20,
    decoder_attention_heads=20,
    encoder_ffn_dim=5120,
    decoder_ffn_dim=5120,
    num_mel_bins=128,
    vocab_size=VOCABULARY,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
  )
  given = {"input_features": noise(1, 128, 3000)}
  return First(built(WhisperEncoder, config, "eager"), *given), given


def _wave(seconds):
  def make():
    config = tf.Wav2Vec2Config(num_hidden_layers=2)
    given = {"input_values": noise(1, 16000 * seconds)}
    return First(built(tf.Wav2Vec2Model, config, "sdpa"), *given), given

  return make


def _t5(batch, length):
  def make():
    config = tf.T5Config(
      vocab_size=VOCABULARY,
      d_model=1024,
      d_kv=64,
      d_ff=2816,
      num_layers=2,
      num_heads=16,
      feed_forward_proj="gated-gelu",
      decoder_start_token_id=0,
    )
    given = text_inputs(batch, length)
    return First(tf.T5EncoderModel(config), *given), given

  return make


def _clip_text():
  config = tf.CLIPTextConfig(
    vocab_size=VOCABULARY,
    hidden_size=768,
    intermediate_size=3072,
    num_hidden_layers=2,
    num_attention_heads=12,
    eos_token_id=2,
  )
  given = text_inputs(8, 77)
  return First(built(tf.CLIPTextModel, config), *given), given


def _deberta():
  config = tf.DebertaV2Config(
    **_BASE,
    hidden_size=768,
    relative_attention=True,
    position_buckets=256,
    norm_rel_ebd="layer_norm",
    share_att_key=True,
    pos_att_type=["p2c", "c2p"],
    max_position_embeddings=512,
  )
  given = text_inputs(1, 256)
  return First(built(tf.DebertaV2Model, config, "eager"), *given), given


def _modernbert(batch, length):
  return _text(
    tf.ModernBertModel,
    lambda: tf.ModernBertConfig(
      vocab_size=VOCABULARY,
      num_hidden_layers=3,
      pad_token_id=0,
      bos_token_id=1,
      eos_token_id=2,
      cls_token_id=1,
      sep_token_id=2,
    ),
    batch,
    length,
  )


ENCODERS = (
  _text_model(
    "bert_eager_4x384_fp32", _text(tf.BertModel, lambda: tf.BertConfig(**_BASE), 4, 384, "eager"), "fp32"
  ),
  _dynamic("bert_dynamic", _text(tf.BertModel, lambda: tf.BertConfig(**_BASE), 2, 128)),
  _text_model("bert_1x512_bf16", _text(tf.BertModel, lambda: tf.BertConfig(**_BASE), 1, 512), "bf16"),
  _text_model(
    "roberta_1x512",
    _text(tf.RobertaModel, lambda: tf.RobertaConfig(**_BASE, max_position_embeddings=514), 1, 512),
  ),
  _dynamic(
    "roberta_large_dynamic_fp32",
    _text(tf.RobertaModel, lambda: tf.RobertaConfig(**_LARGE, max_position_embeddings=514), 2, 128, "eager"),
    "fp32",
  ),
  _text_model("deberta_v3_1x256", _deberta),
  _text_model("modernbert_2x1024", _modernbert(2, 1024)),
  _dynamic("modernbert_dynamic_fp32", _modernbert(2, 256), "fp32", seq=256),
  _text_model("e5_large_8x128", _text(tf.BertModel, lambda: tf.BertConfig(**_LARGE), 8, 128, wrap=Pooled)),
  _text_model(
    "mpnet_4x128", _text(tf.MPNetModel, lambda: tf.MPNetConfig(**_BASE), 4, 128, "eager", wrap=Pooled)
  ),
  _text_model(
    "distilbert_16x128",
    _text(tf.DistilBertModel, lambda: tf.DistilBertConfig(vocab_size=VOCABULARY, n_layers=2), 16, 128),
  ),
  Real("clip_text_8x77", _clip_text, limits=TEXT_LIMITS),
  Real(
    "clip_vision_l14",
    _image(
      tf.CLIPVisionModel,
      lambda: tf.CLIPVisionConfig(
        hidden_size=1024,
        intermediate_size=4096,
        num_hidden_layers=2,
        num_attention_heads=16,
        image_size=224,
        patch_size=14,
      ),
      2,
      224,
    ),
  ),
  Real(
    "siglip_so400m",
    _image(
      tf.SiglipVisionModel,
      lambda: tf.SiglipVisionConfig(
        hidden_size=1152,
        intermediate_size=4304,
        num_hidden_layers=2,
        num_attention_heads=16,
        image_size=224,
        patch_size=14,
      ),
      1,
      224,
    ),
  ),
  Real(
    "siglip_b16_bf16",
    _image(tf.SiglipVisionModel, lambda: tf.SiglipVisionConfig(num_hidden_layers=2), 4, 224, "eager"),
    "bf16",
    opset=22,  # before it no Conv of bf16 is valid
  ),
  Real(
    "vit_large_fp32",
    _image(
      tf.ViTModel,
      lambda: tf.ViTConfig(
        hidden_size=1024, intermediate_size=4096, num_hidden_layers=2, num_attention_heads=16
      ),
      4,
      224,
      "eager",
    ),
    "fp32",
  ),
  Real(
    "swin_base",
    _image(
      tf.SwinModel,
      lambda: tf.SwinConfig(embed_dim=128, depths=[2, 2, 2, 2], num_heads=[4, 8, 16, 32]),
      1,
      224,
      "eager",
    ),
  ),
  Real(
    "dinov2_base",
    _image(tf.Dinov2Model, lambda: tf.Dinov2Config(num_hidden_layers=2, image_size=518), 1, 518),
  ),
  Real(
    "convnext_base",
    _image(
      tf.ConvNextModel,
      lambda: tf.ConvNextConfig(hidden_sizes=[128, 256, 512, 1024], depths=[2, 2, 3, 2]),
      2,
      224,
      "eager",
    ),
  ),
  Real("whisper_large_encoder", _whisper),
  Real("wav2vec2_base_fp32", _wave(4), "fp32"),
  _text_model("t5_large_encoder_1x512", _t5(1, 512)),
  _dynamic("t5_large_encoder_dynamic_fp32", _t5(2, 128), "fp32"),
  Real(
    "encoder_layers_dynamic_fp32",
    _layers,
    "fp32",
    dynamic={"x": {0: "batch", 1: "seq"}},
    sizes={"batch": 2, "seq": 128},
  ),
  Real("encoder_layers", _layers),
)
