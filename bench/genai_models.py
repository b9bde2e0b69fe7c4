"""Folders that onnxruntime-genai's own builder makes of random weights, by kind of model.

Needs torch, transformers and onnxruntime-genai beside this package. ``SMALL`` is for runs on a CPU; ``REAL``
has the widths of published models (two layers). Queries and keys whose norms are inside of the operator
run on GPUs only: for a CPU the norms are nodes of their own (``fuse_qk_norm_gqa=false``).
"""

import contextlib
import json
import sys
import tempfile
from pathlib import Path

#: Of all models: rooms for 256 tokens, two layers. Sizes that a kind says itself come last.
SMALL = {"hidden_size": 512, "intermediate_size": 1024, "num_attention_heads": 8, "num_key_value_heads": 2,
         "vocab_size": 160, "head_dim": 64, "max_position_embeddings": 256}  # fmt: skip
#: Kind -> (class in transformers, sizes of a published model, what the small one has of its own).
KINDS = {
  "llama3": ("LlamaConfig", {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 128256}, {}),
  "qwen3": ("Qwen3Config", {
    "hidden_size": 1024, "intermediate_size": 3072, "num_attention_heads": 16, "num_key_value_heads": 8,
    "vocab_size": 151936, "head_dim": 128, "tie_word_embeddings": True}, {"tie_word_embeddings": False}),
  "phi3": ("Phi3Config", {
    "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 32, "num_key_value_heads": 32,
    "vocab_size": 32064, "sliding_window": None}, {"num_key_value_heads": 8}),
  "phi4": ("Phi3Config", {
    "hidden_size": 3072, "intermediate_size": 8192, "num_attention_heads": 24, "num_key_value_heads": 8,
    "vocab_size": 200064, "partial_rotary_factor": 0.75, "sliding_window": None,
    "tie_word_embeddings": True}, {}),
  "gemma3": ("Gemma3TextConfig", {
    "hidden_size": 2560, "intermediate_size": 10240, "num_attention_heads": 8, "num_key_value_heads": 4,
    "head_dim": 256, "vocab_size": 262208, "sliding_window": 1024,
    "layer_types": ["sliding_attention", "full_attention"]},
    {"sliding_window": 32, "tie_word_embeddings": False}),
  "mistral": ("MistralConfig", {
    "hidden_size": 4096, "intermediate_size": 14336, "num_attention_heads": 32, "num_key_value_heads": 8,
    "vocab_size": 32000, "sliding_window": 4096},
    {"sliding_window": 32, "layer_types": ["sliding_attention"]}),
}  # fmt: skip
#: Small ones whose layers see a window of a whole cache (``windowed_kv_cache=false``). The builder of 0.18
#: knows windows by ``layer_types``, which Mistral has not: its graph has none, and genai fails behind one.
WHOLE_CACHES = ("mistral",)
#: Beside the last layer's output, a tied embedding would name the last token again and again.
OUT_OF_LAYERS = ("o_proj.weight", "down_proj.weight")


def build(kind, precision, out, *, small=True, layers=2, apart=True):
  """Write the folder ``out``; ``precision``: fp16, int4, or cpu, which is int4 beside fp32.

  ``apart``: norms of queries and keys are nodes.
  """
  import torch
  import transformers
  from onnxruntime_genai.models import builder
  from tokenizers import Tokenizer, models

  name, sizes, own = KINDS[kind]
  common = {"num_hidden_layers": layers, "max_position_embeddings": 8192, "bos_token_id": 0,
            "eos_token_id": 1, "pad_token_id": 1}  # fmt: skip
  sizes = common | sizes | (SMALL | own if small else {})
  if name == "Phi3Config":
    sizes["original_max_position_embeddings"] = sizes["max_position_embeddings"]
    sizes.pop("head_dim", None)
  config = getattr(transformers, name)(**sizes)
  torch.manual_seed(0)
  torch.set_default_dtype(torch.float32 if small else torch.float16)
  model = transformers.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
  if small:
    _fill(model, torch)
  words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(160)}, unk_token="w0"))
  with tempfile.TemporaryDirectory(dir=Path(out).parent) as folder, _flat_angles(builder):
    model.save_pretrained(folder)
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, eos_token="w1").save_pretrained(folder)
    del model
    few_bits, provider = precision != "fp16", "cpu" if precision == "cpu" else "cuda"
    given = ("", folder, str(out), "int4" if few_bits else precision, provider, f"{folder}/cache")
    more = ["hf_token=false", *(["fuse_qk_norm_gqa=false"] if apart else [])]
    more += ["int4_block_size=32"] if few_bits else []
    more += ["windowed_kv_cache=false"] if small and kind in WHOLE_CACHES else []
    builder.create_model(*given, **builder.parse_extra_options(*given, more))
  return Path(out)


def on_cpu(folder):
  """Let genai run the folder, made for CUDA, without a GPU."""
  path = Path(folder) / "genai_config.json"
  config = json.loads(path.read_text())
  config["model"]["decoder"]["session_options"]["provider_options"] = []
  path.write_text(json.dumps(config, indent=1))


def _fill(model, torch):
  """Weights of such sizes that no layer is lost in the sum of all, and no token names itself."""
  tied = bool(model.config.tie_word_embeddings)
  with torch.no_grad():
    for name, p in model.named_parameters():
      if p.ndim < 2:
        p.copy_((0.0 if "Gemma" in type(model).__name__ else 1.0) + 0.1 * torch.randn_like(p))
      elif "embed" in name:
        p.normal_(0, 0.1 if tied else 1.0)
      else:
        p.normal_(0, p.shape[-1] ** -0.5 * (4.0 if name.endswith(OUT_OF_LAYERS) else 1.0))


@contextlib.contextmanager
def _flat_angles(builder):
  """The builder of 0.18 reads angles of Gemma-3 as transformers 4 wrote them: by one base for each kind."""
  kind = sys.modules[builder.Gemma3Model.__module__].Gemma3Model
  own = kind.__init__

  def init(self, config, *more):
    if "full_attention" in config.rope_parameters:
      config.rope_local_base_freq = config.rope_parameters["sliding_attention"]["rope_theta"]
      config.rope_theta = config.rope_parameters["full_attention"]["rope_theta"]
      config.rope_parameters = {"rope_type": "default", "rope_theta": config.rope_theta}
    own(self, config, *more)

  kind.__init__ = init
  try:
    yield
  finally:
    kind.__init__ = own
