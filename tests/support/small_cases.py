"""Sizes of the speed table's rows that a CPU computes at once."""

#: Every row at a size that a CPU computes at once.
SMALL = {
  "rmsnorm_linear": {"batch": 5, "hidden": 192, "out": 160},
  "gated_mlp": {"batch": 5, "hidden": 192, "out": 160},
  "llama_mlp": {"batch": 2, "hidden": 128, "inner": 288},
  "lora": {"batch": 5, "hidden": 192, "out": 160, "rank": 16},
  "ngpt_step": {"batch": 5, "hidden": 192, "out": 160},
  "experts": {"top": 2, "count": 5, "hidden": 96, "inner": 160},
  "attention": {"heads": 3, "queries": 1, "depth": 32, "keys": 300},
  "gqa_decode": {"heads": 2, "queries": 4, "depth": 32, "keys": 300},
  "qknorm": {"heads": 4, "queries": 1, "depth": 32, "keys": 300},
  "llama_layer": {"heads": 8, "kv_heads": 2, "depth": 16, "inner": 288, "length": 100},
}
