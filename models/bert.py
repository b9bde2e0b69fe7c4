"""A two-layer BERT encoder with exact (erf) GELU, fp16."""

import torch
from export import FOLDER, export, fill, write_packed
from transformers import BertConfig, BertModel

BATCH, TOKENS = 1, 8
CONFIG = BertConfig(
  vocab_size=128,
  hidden_size=64,
  intermediate_size=128,
  num_hidden_layers=2,
  num_attention_heads=4,
  max_position_embeddings=16,
  hidden_act="gelu",
)


class Encoder(torch.nn.Module):
  """Token ids in, last hidden state out."""

  def __init__(self, model):
    super().__init__()
    self.model = model

  def forward(self, input_ids):
    """Run the encoder over one sequence without padding."""
    return self.model(input_ids=input_ids).last_hidden_state


def main():
  """Export `bert.onnx` next to this file, and its packed form."""
  model = Encoder(BertModel(CONFIG, add_pooling_layer=False).half())
  fill(model)
  generator = torch.Generator().manual_seed(6)
  ids = torch.randint(CONFIG.vocab_size, (BATCH, TOKENS), generator=generator)
  inputs = {"input_ids": ids}
  path = FOLDER / "bert.onnx"
  export(model, inputs, ["last_hidden_state"], path)
  write_packed(path, model)


if __name__ == "__main__":
  main()
