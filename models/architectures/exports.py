"""The models of ``architectures.py`` as other exporters write them: for ``coverage.py --from``.

    python models/architectures/exports.py FOLDER [KIND[:NAME] ...]

Writes FOLDER/NAME.KIND.onnx with weights and says how far ONNX Runtime is from torch. Kinds:
``torchscript`` (opset 18), ``dynamo18``, ``dynamo23`` and ``dynamo24``, each also with ``-sdpa``
(from opset 23 on the operator Attention), and ``genai-PRECISION-PROVIDER`` of LLaMA, Qwen3, Phi-3
and Gemma-2. Needs `pip install .[export] onnxruntime-genai` (the last is only for genai).
"""

import copy
import multiprocessing
import sys
import tempfile
import warnings
from pathlib import Path

import onnx
import torch
import transformers as tf
from architectures import ARCHITECTURES
from export import fill, strip
from export_graph import difference

NEW_OPSETS = ("llama3_decode", "llama3_prefill", "bert", "gpt2_decode", "vit")
GENAI = ("llama3_decode", "qwen3_decode", "phi3_decode", "gemma2_decode")
KINDS = {
  "torchscript": tuple(a.name for a in ARCHITECTURES),
  **{f"dynamo{n}{s}": NEW_OPSETS for n in (18, 23, 24) for s in ("", "-sdpa")},
  **{f"genai-{how}": GENAI for how in ("fp32-cpu", "fp16-cuda", "int4-cpu", "int4-cuda")},
}


def export(kind, name, path):
  """Write one model; raises what torch or, on comparing, ONNX Runtime raises."""
  warnings.filterwarnings("ignore")
  torch.manual_seed(0)
  (architecture,) = (a for a in ARCHITECTURES if a.name == name)
  module, inputs = architecture.make()
  if kind.startswith("genai"):
    module, inputs = _genai(kind, module.model.config, path)
  else:
    module = module.half().eval()
    fill(module)
    for part in module.modules():
      if "sdpa" in kind and isinstance(part, tf.PreTrainedModel):
        part.set_attn_implementation("sdpa")
    inputs = {k: v.half() if v.is_floating_point() else v for k, v in inputs.items()}
    opset = kind.removeprefix("dynamo").removesuffix("-sdpa")
    torch.onnx.export(
      module, tuple(inputs.values()), path, input_names=list(inputs), verbose=False,
      **({"dynamo": False, "opset_version": 18} if kind == "torchscript" else
         {"dynamo": True, "opset_version": int(opset), "external_data": False}),
    )  # fmt: skip
  model = strip(onnx.load(path))
  onnx.save(model, path)
  print(f"{path.stem}: {len(model.graph.node)} nodes", flush=True)
  with torch.no_grad():
    expected = module(*inputs.values())
  expected = expected if isinstance(expected, tuple) else (expected,)
  print(f"  difference from torch {difference(model, inputs, expected):.1e}", flush=True)


def _genai(kind, config, path):
  """Write what the model builder makes of random weights; the torch module and its inputs.

  The builder takes a layer for the last one by its width, so no other may be as wide.
  """
  from onnxruntime_genai.models import builder
  from tokenizers import Tokenizer, models

  _, precision, provider = kind.split("-")
  config = copy.deepcopy(config)
  config.vocab_size = 160
  if hasattr(config, "original_max_position_embeddings"):
    config.original_max_position_embeddings = config.max_position_embeddings
  if getattr(config, "sliding_window", None):
    config.sliding_window = 16  # a cache must be as long
  model = tf.AutoModelForCausalLM.from_config(config, attn_implementation="eager").eval()
  fill(model)
  words = Tokenizer(models.WordLevel({f"w{i}": i for i in range(160)}, unk_token="w0"))
  with tempfile.TemporaryDirectory() as folder:
    for part in (model, tf.PreTrainedTokenizerFast(tokenizer_object=words)):
      part.save_pretrained(folder)
    given = ("", folder, f"{folder}/out", precision, provider, f"{folder}/cache")
    options = builder.parse_extra_options(*given, ["hf_token=false"])
    builder.create_model(*given, **options)
    onnx.save(onnx.load(f"{folder}/out/model.onnx"), path)
  head = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
  narrow = precision == "fp16" or provider == "cuda"
  empty = torch.zeros(1, config.num_key_value_heads, 0, head).to(torch.half if narrow else None)
  inputs = {"input_ids": torch.arange(3, 8)[None], "attention_mask": torch.ones(1, 5).long()}
  inputs |= {i.name: empty for i in onnx.load(path).graph.input if i.name.startswith("past")}

  def run(input_ids, attention_mask, *_):
    out = model(input_ids=input_ids, attention_mask=attention_mask)
    layers = out.past_key_values.layers
    return (out.logits, *(x.keys for x in layers), *(x.values for x in layers))

  return run, inputs


def main(folder, wanted):
  """Export what is wanted (default: everything), each in a process: torch dies of one of them."""
  folder.mkdir(parents=True, exist_ok=True)
  for kind, names in KINDS.items():
    for name in names:
      if wanted and not {kind, f"{kind}:{name}"} & set(wanted):
        continue
      path = folder / f"{name}.{kind}.onnx"
      process = multiprocessing.get_context("fork").Process(target=export, args=(kind, name, path))
      process.start()
      process.join()
      if process.exitcode:
        print(f"{path.stem}: exit status {process.exitcode}", flush=True)


if __name__ == "__main__":
  main(Path(sys.argv[1]), sys.argv[2:])
