"""A one-layer LLaMA with PEFT LoRA adapters on its linear layers, not merged, fp16."""

import torch
from export import FOLDER, export, fill, write_packed
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaModel

BATCH, TOKENS = 1, 8
CONFIG = LlamaConfig(
  vocab_size=128,
  hidden_size=64,
  intermediate_size=128,
  num_hidden_layers=1,
  num_attention_heads=4,
  num_key_value_heads=2,
  max_position_embeddings=64,
  use_cache=False,
)
LORA = LoraConfig(
  r=8,
  lora_alpha=16,
  lora_dropout=0.0,
  target_modules=["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"],
)


class Prefill(torch.nn.Module):
  """Token ids in, last hidden state out."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids):
    """Run the model over a whole prompt."""
    return self.model(input_ids=input_ids).last_hidden_state


def main():
  """Export `lora.onnx` next to this file, and its packed form."""
  base = LlamaModel._from_config(CONFIG, dtype=torch.float16)
  # autocast_adapter_dtype would keep the adapters in fp32: that is for training.
  model = Prefill(get_peft_model(base, LORA, autocast_adapter_dtype=False))
  fill(model)
  generator = torch.Generator().manual_seed(4)
  ids = torch.randint(CONFIG.vocab_size, (BATCH, TOKENS), generator=generator)
  inputs = {"input_ids": ids}
  path = FOLDER / "lora.onnx"
  export(model, inputs, ["last_hidden_state"], path)
  write_packed(path, model)


if __name__ == "__main__":
  main()
