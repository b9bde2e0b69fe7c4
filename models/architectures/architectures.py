"""Exports small random models of many architectures, as transformers and torch write them.

    python models/architectures/architectures.py [NAME ...]

Needs torch and transformers (`pip install .[export]`); nothing that is installed or tested imports
this file. What it writes is read by ``weights.py``, which needs neither.
"""

import sys
import traceback
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
import transformers as tf

FOLDER = Path(__file__).resolve().parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from export_graph import Export, export_graph  # noqa: E402
from real_common import Decode, cache_tensors  # noqa: E402

BATCH, LENGTH, PAST = 1, 8, 24
VOCABULARY = 128

#: What most configurations share: two layers, hidden 64, heads of 16.
SMALL = {
  "vocab_size": VOCABULARY, "hidden_size": 64, "intermediate_size": 128,
  "num_hidden_layers": 2, "num_attention_heads": 4, "max_position_embeddings": 64,
  "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
GROUPED = SMALL | {"num_key_value_heads": 2, "head_dim": 16, "tie_word_embeddings": False}

Inputs = dict[str, torch.Tensor]


def _ids(length=LENGTH):
  return torch.randint(3, VOCABULARY, (BATCH, length), generator=torch.Generator().manual_seed(1))


def _noise(*shape):
  return torch.randn(shape, generator=torch.Generator().manual_seed(2))


class Prefill(torch.nn.Module):
  """Ids to logits and the cache, as `past_key_values` tensors."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids, attention_mask):
    out = self.model(input_ids=input_ids, attention_mask=attention_mask, use_cache=True)
    return (out.logits, *cache_tensors(out.past_key_values))


class First(torch.nn.Module):
  """The first output of an encoder."""

  def __init__(self, model, *names):
    super().__init__()
    self.model, self.names = model, names

  def forward(self, *args):
    return self.model(**dict(zip(self.names, args, strict=True)))[0]


@dataclass(frozen=True)
class Architecture:
  """``make`` returns the module and its inputs; floats are cast to the export's type."""

  name: str
  make: Callable[[], tuple[torch.nn.Module, Inputs]]


def _prefill(model):
  mask = torch.ones((BATCH, LENGTH), dtype=torch.int64)
  return Prefill(model), {"input_ids": _ids(), "attention_mask": mask}


def _decode(model):
  """The shapes of the cache are those that a prefill of the same model gives."""
  with torch.no_grad():
    out = model(input_ids=_ids(PAST), use_cache=True)
  inputs = {
    "input_ids": _ids(1),
    "attention_mask": torch.ones((BATCH, PAST + 1), dtype=torch.int64),
    "position_ids": torch.full((BATCH, 1), PAST),
  }
  for number, tensor in enumerate(cache_tensors(out.past_key_values)):
    inputs[f"past_{number}"] = _noise(*tensor.shape)
  return Decode(model), inputs


def _decoder(name, config, of=tf.AutoModelForCausalLM, **options):
  def model():
    build = of.from_config if of is tf.AutoModelForCausalLM else of._from_config
    return build(config(), attn_implementation="eager", **options)

  return [
    Architecture(f"{name}_prefill", lambda: _prefill(model())),
    Architecture(f"{name}_decode", lambda: _decode(model())),
  ]


def _encoder(name, config):
  def make():
    model = tf.AutoModel.from_config(config(), attn_implementation="eager")
    mask = torch.ones((BATCH, LENGTH), dtype=torch.int64)
    return First(model, "input_ids", "attention_mask"), {
      "input_ids": _ids(), "attention_mask": mask,
    }  # fmt: skip

  return Architecture(name, make)


def _vision(name, make_model):
  return Architecture(
    name,
    lambda: (First(make_model(), "pixel_values"), {"pixel_values": _noise(BATCH, 3, 32, 32)}),
  )


def _whisper():
  return tf.WhisperConfig(
    vocab_size=VOCABULARY, d_model=64, encoder_layers=2, decoder_layers=2,
    encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=128,
    decoder_ffn_dim=128, num_mel_bins=16, max_source_positions=32, max_target_positions=64,
    pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1,
  )  # fmt: skip


def _whisper_encoder():
  model = tf.WhisperModel._from_config(_whisper(), attn_implementation="eager").encoder
  return First(model, "input_features"), {"input_features": _noise(BATCH, 16, 64)}


class CrossDecoder(torch.nn.Module):
  """A decoder's step over the states of its encoder, without a cache."""

  def __init__(self, decoder):
    super().__init__()
    self.decoder = decoder

  def forward(self, input_ids, states):
    return self.decoder(input_ids=input_ids, encoder_hidden_states=states, use_cache=False).last_hidden_state


def _whisper_decoder():
  model = tf.WhisperModel._from_config(_whisper(), attn_implementation="eager").decoder
  return CrossDecoder(model), {"input_ids": _ids(), "states": _noise(BATCH, 32, 64)}


def _t5():
  return tf.T5Config(
    vocab_size=VOCABULARY, d_model=64, d_kv=16, d_ff=128, num_layers=2, num_heads=4,
    decoder_start_token_id=0,
  )  # fmt: skip


def _t5_encoder():
  model = tf.T5EncoderModel(_t5())
  mask = torch.ones((BATCH, LENGTH), dtype=torch.int64)
  return First(model, "input_ids", "attention_mask"), {
    "input_ids": _ids(), "attention_mask": mask,
  }  # fmt: skip


def _t5_decoder():
  return CrossDecoder(tf.T5Model(_t5()).decoder), {
    "input_ids": _ids(), "states": _noise(BATCH, LENGTH, 64),
  }  # fmt: skip


def _mamba():
  config = tf.MambaConfig(
    vocab_size=VOCABULARY, hidden_size=64, state_size=8, num_hidden_layers=2, expand=2,
    time_step_rank=4, pad_token_id=0, bos_token_id=1, eos_token_id=2,
  )  # fmt: skip
  model = tf.MambaModel(config)

  class Mamba(torch.nn.Module):
    def __init__(self):
      super().__init__()
      self.model = model

    def forward(self, input_ids):
      return self.model(input_ids, use_cache=False).last_hidden_state

  return Mamba(), {"input_ids": _ids()}


def _lora():
  import peft

  base = tf.LlamaForCausalLM._from_config(tf.LlamaConfig(**GROUPED), attn_implementation="eager")
  config = peft.LoraConfig(r=8, lora_alpha=16, target_modules="all-linear")
  return _decode(peft.get_peft_model(base, config).base_model.model)


class NormalizedStep(torch.nn.Module):
  """nGPT (arXiv 2410.01131): h <- norm(h + alpha (norm(mlp(h)) - h)) on the unit sphere."""

  def __init__(self, hidden=64, inner=128, steps=2):
    super().__init__()

    def linear(a, b):
      return torch.nn.Linear(a, b, bias=False)

    self.up = torch.nn.ModuleList(linear(hidden, inner) for _ in range(steps))
    self.gate = torch.nn.ModuleList(linear(hidden, inner) for _ in range(steps))
    self.down = torch.nn.ModuleList(linear(inner, hidden) for _ in range(steps))
    self.alpha = torch.nn.ParameterList(torch.full((hidden,), 0.05) for _ in range(steps))
    self.scale = torch.nn.ParameterList(torch.ones(inner) for _ in range(steps))

  @staticmethod
  def norm(x):
    return x / x.float().norm(dim=-1, keepdim=True).to(x.dtype)

  def forward(self, hidden):
    for up, gate, down, alpha, scale in zip(
      self.up, self.gate, self.down, self.alpha, self.scale, strict=True
    ):
      u, v = up(hidden) * scale, gate(hidden) * scale
      step = self.norm(down(u * torch.nn.functional.silu(v)))
      hidden = self.norm(hidden + alpha * (step - hidden))
    return hidden


ARCHITECTURES = (
  *_decoder("llama3", lambda: tf.LlamaConfig(**GROUPED)),
  *_decoder("qwen3", lambda: tf.Qwen3Config(**GROUPED)),
  *_decoder("gemma2", lambda: tf.Gemma2Config(**GROUPED, query_pre_attn_scalar=16)),
  *_decoder("gemma3", lambda: tf.Gemma3TextConfig(**GROUPED, query_pre_attn_scalar=16)),
  *_decoder("mistral", lambda: tf.MistralConfig(**GROUPED)),
  *_decoder("phi3", lambda: tf.Phi3Config(
    **{k: v for k, v in GROUPED.items() if k != "head_dim"})),
  *_decoder("gpt2", lambda: tf.GPT2Config(
    vocab_size=VOCABULARY, n_embd=64, n_layer=2, n_head=4, n_positions=64,
    bos_token_id=1, eos_token_id=2)),
  *_decoder("opt", lambda: tf.OPTConfig(
    vocab_size=VOCABULARY, hidden_size=64, ffn_dim=128, num_hidden_layers=2,
    num_attention_heads=4, max_position_embeddings=64, word_embed_proj_dim=64)),
  *_decoder("deepseek_v3", lambda: tf.DeepseekV3Config(
    **SMALL, moe_intermediate_size=32, num_key_value_heads=4, n_routed_experts=4,
    num_experts_per_tok=2, n_group=1, topk_group=1, n_shared_experts=1, first_k_dense_replace=1,
    q_lora_rank=32, kv_lora_rank=16, qk_rope_head_dim=8, qk_nope_head_dim=16, v_head_dim=16),
    experts_implementation="batched_mm"),
  *_decoder("mixtral", lambda: tf.MixtralConfig(
    **GROUPED, num_local_experts=4, num_experts_per_tok=2),
    experts_implementation="batched_mm"),
  *_decoder("chameleon", lambda: tf.ChameleonConfig(
    **{k: v for k, v in GROUPED.items() if k != "head_dim"}, vocabulary_map={"<image>": 4},
    vq_config={"embed_dim": 16, "num_embeddings": 8, "latent_channels": 16, "base_channels": 32,
               "channel_multiplier": [1], "num_res_blocks": 1, "resolution": 32}),
    of=tf.ChameleonForConditionalGeneration),
  _encoder("bert", lambda: tf.BertConfig(**SMALL)),
  _encoder("roberta", lambda: tf.RobertaConfig(**SMALL)),
  _encoder("modernbert", lambda: tf.ModernBertConfig(**SMALL)),
  _encoder("distilbert", lambda: tf.DistilBertConfig(
    vocab_size=VOCABULARY, dim=64, hidden_dim=128, n_layers=2, n_heads=4,
    max_position_embeddings=64, pad_token_id=0)),
  _encoder("clip_text", lambda: tf.CLIPTextConfig(**SMALL)),
  _vision("vit", lambda: tf.ViTModel._from_config(tf.ViTConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    image_size=32, patch_size=8), attn_implementation="eager")),
  _vision("clip_vision", lambda: tf.CLIPVisionModel._from_config(tf.CLIPVisionConfig(
    hidden_size=64, intermediate_size=128, num_hidden_layers=2, num_attention_heads=4,
    image_size=32, patch_size=8), attn_implementation="eager")),
  Architecture("whisper_encoder", _whisper_encoder),
  Architecture("whisper_decoder", _whisper_decoder),
  Architecture("t5_encoder", _t5_encoder),
  Architecture("t5_decoder", _t5_decoder),
  Architecture("mamba", _mamba),
  Architecture("lora", _lora),
  Architecture("ngpt", lambda: (NormalizedStep(), {"hidden": _noise(BATCH, 64)})),
)  # fmt: skip

#: These are also written in other element types.
VARIANTS = dict.fromkeys(("llama3_decode", "bert", "ngpt"), (torch.bfloat16, torch.float32))


def main(wanted):
  """Export everything, or the architectures named; say which of them cannot be."""
  warnings.filterwarnings("ignore")
  failed = []
  for architecture in ARCHITECTURES:
    if wanted and architecture.name not in wanted:
      continue
    for dtype in (torch.float16, *VARIANTS.get(architecture.name, ())):
      suffix = "" if dtype is torch.float16 else f"_{str(dtype).removeprefix('torch.')}"
      name = architecture.name + suffix
      try:
        torch.manual_seed(0)
        module, inputs = architecture.make()
        export_graph(Export(name, module, inputs, dtype))
      except Exception as error:  # the next architecture may work
        traceback.print_exc()
        failed.append(f"{name}: {type(error).__name__}: {str(error).splitlines()[:1]}")
  print(*failed, sep="\n")
  return bool(failed)


if __name__ == "__main__":
  sys.exit(main(sys.argv[1:]))
