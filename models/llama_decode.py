"""A LLaMA decode step: one token per sequence, KV cache as plain tensors, fp16, two layers."""

import torch
from export import FOLDER, export, fill, write_packed
from transformers import LlamaConfig, LlamaForCausalLM
from transformers.cache_utils import DynamicCache

BATCH, PAST, PADDING = 2, 16, 3
CONFIG = LlamaConfig(
  vocab_size=128,
  hidden_size=64,
  intermediate_size=128,
  num_hidden_layers=2,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=64,
  tie_word_embeddings=False,
)


class DecodeStep(torch.nn.Module):
  """Tensors in, tensors out: the exporter takes no DynamicCache argument."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids, attention_mask, position_ids, *past):
    """Return the logits, then present key and value of each layer."""
    cache = DynamicCache(config=self.model.config)
    for layer in range(len(past) // 2):
      cache.update(past[2 * layer], past[2 * layer + 1], layer)
    result = self.model(
      input_ids=input_ids,
      attention_mask=attention_mask,
      position_ids=position_ids,
      past_key_values=cache,
      use_cache=True,
    )
    present = [tensor for layer in cache.layers for tensor in (layer.keys, layer.values)]
    return (result.logits, *present)


def main():
  """Export `llama_decode.onnx` next to this file, and its packed form."""
  model = DecodeStep(LlamaForCausalLM._from_config(CONFIG, dtype=torch.float16))
  fill(model)
  generator = torch.Generator().manual_seed(2)
  names = [f"{kind}_{i}" for i in range(CONFIG.num_hidden_layers) for kind in ("key", "value")]
  shape = (BATCH, CONFIG.num_key_value_heads, PAST, CONFIG.head_dim)
  mask = torch.ones((BATCH, PAST + 1), dtype=torch.int64)
  mask[1:, :PADDING] = 0  # every sequence but the first is left-padded
  inputs = {
    "input_ids": torch.randint(CONFIG.vocab_size, (BATCH, 1), generator=generator),
    "attention_mask": mask,
    "position_ids": mask.sum(dim=1, keepdim=True) - 1,
  }
  for name in names:
    inputs[f"past_{name}"] = torch.randn(shape, generator=generator).half()
  outputs = ["logits", *(f"present_{name}" for name in names)]
  path = FOLDER / "llama_decode.onnx"
  export(model, inputs, outputs, path)
  write_packed(path, model)


if __name__ == "__main__":
  main()
