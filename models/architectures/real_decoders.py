"""Decoders at real width: prefill, and decode steps with a cache."""

import torch
import transformers as tf
from real_common import (
  TEXT_DYNAMIC,
  TEXT_LIMITS,
  Decode,
  First,
  Prefill,
  built,
  cache,
  ids,
  noise,
  ones,
  text_inputs,
)
from real_export import Real

VOCABULARY = 8192
_TWO = {
  "vocab_size": VOCABULARY,
  "num_hidden_layers": 2,
  "pad_token_id": 0,
  "bos_token_id": 1,
  "eos_token_id": 2,
}
_STEP_LIMITS = TEXT_LIMITS | {"position_ids": 128}


def _prefill(cls, config, length, attention="sdpa", batch=1):
  return lambda: (Prefill(built(cls, config(), attention)), text_inputs(batch, length))


def _step(cls, config, past, attention="sdpa", batch=1, heads=None, depth=None, **more):
  def make():
    c = config()
    layers = c.num_hidden_layers
    kv = heads or getattr(c, "num_key_value_heads", None) or c.num_attention_heads
    width = depth or getattr(c, "head_dim", None) or c.hidden_size // c.num_attention_heads
    given = {
      "input_ids": ids(batch, 1),
      "attention_mask": ones(batch, past + 1),
      "position_ids": torch.full((batch, 1), past),
      **cache(layers, kv, past, width, batch),
    }
    return Decode(built(cls, c, attention, **more), 2 * layers), given

  return make


def _decode(name, make, dtype="fp16", **more):
  return Real(name, make, dtype, _STEP_LIMITS, **more)


def _prefilled(name, make, dtype="fp16", **more):
  return Real(name, make, dtype, TEXT_LIMITS, **more)


def _growing(layers):
  """A batch and a cache whose sizes only a run knows."""
  return {
    "input_ids": {0: "batch"},
    "attention_mask": {0: "batch", 1: "total"},
    "position_ids": {0: "batch"},
    **{f"past_{i}": {0: "batch", 2: "past"} for i in range(2 * layers)},
  }


def _llama(**more):
  return lambda: tf.LlamaConfig(
    **_TWO
    | {
      "hidden_size": 2048,
      "intermediate_size": 8192,
      "num_attention_heads": 32,
      "num_key_value_heads": 8,
      "head_dim": 64,
      "max_position_embeddings": 8192,
      "tie_word_embeddings": False,
      **more,
    }
  )


def _qwen3():
  return tf.Qwen3Config(
    **_TWO,
    hidden_size=2048,
    intermediate_size=6144,
    num_attention_heads=16,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
  )


def _mamba_step():
  """One token with the states of 24 layers (mamba-130m)."""
  config = tf.MambaConfig(
    vocab_size=VOCABULARY,
    hidden_size=768,
    state_size=16,
    num_hidden_layers=24,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
  )
  return MambaStep(tf.MambaModel(config)), {
    "input_ids": ids(1, 1),
    **{f"conv_{i}": noise(1, 1536, 3) for i in range(24)},
    **{f"ssm_{i}": noise(1, 1536, 16) for i in range(24)},
  }


class MambaStep(torch.nn.Module):
  """The step of Mamba's paper with the parameters of transformers' class."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids, *states):
    hidden = self.model.embeddings(input_ids)[:, 0]
    layers = self.model.layers
    new = []
    for i, block in enumerate(layers):
      x, window, state = self.step(block.mixer, block.norm(hidden), states[i], states[len(layers) + i])
      hidden = hidden + x
      new += [window, state]
    return self.model.norm_f(hidden), *new

  def step(self, mixer, hidden, before, state):
    x, gate = mixer.in_proj(hidden).chunk(2, dim=-1)
    window = torch.cat([before, x[..., None]], dim=-1)
    x = mixer.act((window * mixer.conv1d.weight[:, 0]).sum(-1) + mixer.conv1d.bias)
    rank, size = mixer.time_step_rank, mixer.ssm_state_size
    dt, b, c = mixer.x_proj(x).split([rank, size, size], dim=-1)
    dt = torch.nn.functional.softplus(mixer.dt_proj(dt))[..., None]
    a = -torch.exp(mixer.A_log.float())
    state = state * torch.exp(a * dt).to(x.dtype) + dt * b[:, None] * x[..., None]
    y = (state * c[:, None]).sum(-1) + mixer.D * x
    return mixer.out_proj(y * mixer.act(gate)), window[..., 1:], state


class MambaWhole(torch.nn.Module):
  """Mamba over a sequence, without a state."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids):
    return self.model(input_ids, use_cache=False).last_hidden_state


def _mamba_prefill():
  config = tf.MambaConfig(
    vocab_size=VOCABULARY,
    hidden_size=768,
    state_size=16,
    num_hidden_layers=1,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
  )
  return MambaWhole(tf.MambaModel(config)), {"input_ids": ids(1, 128)}


def _whisper_decoder():
  config = tf.WhisperConfig(
    d_model=768,
    encoder_layers=2,
    decoder_layers=2,
    encoder_attention_heads=12,
    decoder_attention_heads=12,
    encoder_ffn_dim=3072,
    decoder_ffn_dim=3072,
    vocab_size=VOCABULARY,
    pad_token_id=0,
    bos_token_id=1,
    eos_token_id=2,
    decoder_start_token_id=1,
  )
  given = {"input_ids": ids(1, 128), "encoder_hidden_states": noise(1, 1500, 768)}
  return First(built(tf.WhisperModel, config, "eager").decoder, *given, use_cache=False), given


def _t5_decoder():
  config = tf.T5Config(
    vocab_size=VOCABULARY,
    d_model=768,
    d_kv=64,
    d_ff=2048,
    num_layers=2,
    num_heads=12,
    feed_forward_proj="gated-gelu",
    decoder_start_token_id=0,
  )
  given = {"input_ids": ids(1, 128), "encoder_hidden_states": noise(1, 512, 768)}
  return First(tf.T5Model(config).decoder, *given, use_cache=False), given


DECODERS = (
  _decode(
    "gpt2_medium_decode1024",
    _step(
      tf.GPT2LMHeadModel,
      lambda: tf.GPT2Config(
        vocab_size=VOCABULARY,
        n_embd=1024,
        n_layer=2,
        n_head=16,
        n_positions=2048,
        bos_token_id=1,
        eos_token_id=2,
      ),
      1023,
      "eager",
    ),
  ),
  _prefilled(
    "gpt2_prefill512_fp32",
    _prefill(
      tf.GPT2LMHeadModel,
      lambda: tf.GPT2Config(vocab_size=VOCABULARY, n_layer=2, bos_token_id=1, eos_token_id=2),
      512,
    ),
    "fp32",
  ),
  _decode("llama_1b_decode2048_bf16", _step(tf.LlamaForCausalLM, _llama(), 2047), "bf16"),
  _decode(
    "llama_1b_decode_growing",
    _step(tf.LlamaForCausalLM, _llama(), 127, batch=2),
    dynamic=_growing(2),
    sizes={"batch": 2, "past": 255, "total": 256},
  ),
  _prefilled("llama_1b_prefill1024_eager", _prefill(tf.LlamaForCausalLM, _llama(), 1024, "eager")),
  _prefilled(
    "llama_1b_prefill_dynamic",
    _prefill(tf.LlamaForCausalLM, _llama(), 128, batch=2),
    dynamic=TEXT_DYNAMIC,
    sizes={"batch": 1, "seq": 128},
  ),
  _decode(
    "qwen2_decode4096",
    _step(
      tf.Qwen2ForCausalLM,
      lambda: tf.Qwen2Config(
        **_TWO,
        hidden_size=1536,
        intermediate_size=8960,
        num_attention_heads=12,
        num_key_value_heads=2,
        max_position_embeddings=8192,
      ),
      4095,
      "eager",
    ),
  ),
  _prefilled("qwen3_1.7b_prefill256_bf16", _prefill(tf.Qwen3ForCausalLM, _qwen3, 256), "bf16"),
  _decode(
    "qwen3_1.7b_decode_growing",
    _step(tf.Qwen3ForCausalLM, _qwen3, 127, batch=2),
    dynamic=_growing(2),
    sizes={"batch": 1, "past": 255, "total": 256},
  ),
  _decode(
    "gemma2_2b_decode1024",
    _step(tf.Gemma2ForCausalLM, lambda: tf.Gemma2Config(**_TWO, max_position_embeddings=8192), 1023, "eager"),
  ),
  _decode(
    "gemma3_1b_decode2048_fp32",
    _step(
      tf.Gemma3ForCausalLM,
      lambda: tf.Gemma3TextConfig(
        **_TWO,
        hidden_size=1152,
        intermediate_size=6912,
        num_attention_heads=4,
        num_key_value_heads=1,
        head_dim=256,
        sliding_window=4096,
      ),
      2047,
    ),
    "fp32",
  ),
  _decode(
    "phi3_mini_decode512",
    _step(
      tf.Phi3ForCausalLM,
      lambda: tf.Phi3Config(
        **_TWO, hidden_size=3072, intermediate_size=8192, num_attention_heads=32, num_key_value_heads=32
      ),
      511,
      "eager",
    ),
  ),
  _prefilled(
    "phi2_prefill256",
    _prefill(
      tf.PhiForCausalLM,
      lambda: tf.PhiConfig(
        **_TWO, hidden_size=2560, intermediate_size=10240, num_attention_heads=32, partial_rotary_factor=0.4
      ),
      256,
    ),
  ),
  _decode(
    "mistral_7b_decode2048",
    _step(
      tf.MistralForCausalLM,
      lambda: tf.MistralConfig(**_TWO | {"num_hidden_layers": 1}, sliding_window=4096),
      2047,
    ),
  ),
  _decode(
    "mixtral_decode512",
    _step(
      tf.MixtralForCausalLM,
      lambda: tf.MixtralConfig(
        **_TWO | {"num_hidden_layers": 1},
        hidden_size=2048,
        intermediate_size=4096,
        num_attention_heads=16,
        num_key_value_heads=8,
        num_local_experts=4,
      ),
      511,
      "eager",
      experts_implementation="batched_mm",
    ),
  ),
  _decode(
    "opt_1.3b_decode1024_batch4",
    _step(
      tf.OPTForCausalLM,
      lambda: tf.OPTConfig(
        **_TWO, hidden_size=2048, ffn_dim=8192, num_attention_heads=32, word_embed_proj_dim=2048
      ),
      1023,
      "eager",
      batch=4,
    ),
  ),
  Real("mamba_130m_decode_24_layers", _mamba_step, limits={"input_ids": 1000}),
  Real("mamba_130m_prefill128", _mamba_prefill, limits={"input_ids": 1000}),
  Real("whisper_small_decoder128", _whisper_decoder, limits={"input_ids": 1000}),
  Real("t5_base_decoder128_fp32", _t5_decoder, "fp32", {"input_ids": 1000}),
)
