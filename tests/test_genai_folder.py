"""``optimize MODEL_DIR -o OUT_DIR``; docs/paths/decoder.md says what ran in onnxruntime-genai."""

import json
import os

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from refused import refused
from small_models import Net

from mirage_onnx.cli import main
from mirage_onnx.custom_op.library import LIBRARY_NAME
from mirage_onnx.genai_folder import CONFIG, LIBRARY_OPTION, MOST_BYTES, GenaiFolder

K = 512


def decoder(path):
  """Of a decoder what is around attention: a norm and the product behind it, weights outside."""
  net = Net(seed=3, opset=18)
  x = net.input("batch_size", "sequence_length", K)
  model = net.model(net.MatMul(net.rms(x, net.weight(K)), net.weight(K, K)))
  onnx.save(model, path, save_as_external_data=True, location=f"{path.name}.data", size_threshold=1024)


def config_of(**more):
  section = {"filename": "model.onnx", "head_size": 64, "session_options": {"provider_options": []}}
  return {"model": {"type": "llama", "context_length": 4096, "decoder": section, **more},
          "search": {"max_length": 1024, "past_present_share_buffer": True}}  # fmt: skip


def folder(path, config=None, models=("model.onnx",)):
  (path / "sub").mkdir(parents=True)
  for name in models:
    decoder(path / name)
  (path / "tokenizer.json").write_text("{}")
  (path / "sub" / "chat_template.jinja").write_text("{{ x }}")
  (path / CONFIG).write_text(json.dumps(config or config_of()))
  return path


def names(path):
  return {p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file()}


def test_a_folder_becomes_a_folder(tmp_path, capsys):
  source, out = folder(tmp_path / "llm"), tmp_path / "fast"
  assert (
    main(["optimize", str(source), "-o", str(out), "--target", "h200", "--shapes", "sequence_length=1"]) == 0
  )
  assert "custom_ops_library is set for model.onnx" in capsys.readouterr().err
  (data,) = (n for n in names(out) if n.endswith(".data"))
  assert names(out) == {CONFIG, LIBRARY_NAME, "model.onnx", "model.onnx.lock", "tokenizer.json",
                        "sub/chat_template.jinja", data}  # fmt: skip
  assert data != "model.onnx.data"
  config, was = (json.loads((p / CONFIG).read_text()) for p in (out, source))
  assert config["model"]["decoder"]["session_options"].pop(LIBRARY_OPTION) == LIBRARY_NAME
  assert config == was == config_of()
  graph = onnx.load(out / "model.onnx", load_external_data=False).graph
  assert any(n.domain.startswith("ai.mirage") for n in graph.node)
  options = ort.SessionOptions()
  options.register_custom_ops_library(str(out / LIBRARY_NAME))  # as genai does, of a file of the folder
  x = np.random.default_rng(0).standard_normal((1, 3, K)).astype(np.float16)
  feeds = {graph.input[0].name: x}
  results = [
    ort.InferenceSession(str(p / "model.onnx"), o, providers=["CPUExecutionProvider"]).run(None, feeds)[0]
    for p, o in ((source, None), (out, None), (out, options))
  ]
  assert results[0].tobytes() == results[1].tobytes() == results[2].tobytes()


def test_where_nothing_is_replaced_no_library_is_asked_for(tmp_path, capsys):
  source = folder(tmp_path / "llm")
  assert main(["optimize", str(source), "--target", "h200", "--margin", "0.99", "--fail-if-unchanged"]) == 4
  out = tmp_path / "llm.mirage"
  assert json.loads((out / CONFIG).read_text()) == config_of() and LIBRARY_NAME not in names(out)
  assert "no model has custom nodes" in capsys.readouterr().err


@pytest.mark.parametrize(("inside", "given"), [("", "."), ("sub", "..")])
def test_a_folder_that_has_no_name_where_one_stands(tmp_path, monkeypatch, capsys, inside, given):
  monkeypatch.chdir(folder(tmp_path / "llm") / inside)
  assert main(["optimize", given, "--target", "h200", "--margin", "0.99"]) == 0
  assert (tmp_path / "llm.mirage" / CONFIG).exists() and "wrote" in capsys.readouterr().err


def test_sizes_come_from_the_config(tmp_path):
  path = folder(tmp_path / "llm")
  known = GenaiFolder.read(path)
  assert known.sizes("model.onnx", {}) == {"batch_size": (1,), "sequence_length": (1, 16, 256)}
  assert known.sizes("model.onnx", {"batch_size": [1, 8]})["batch_size"] == (1, 8)
  assert known.sizes("model.onnx", {"other": [2]})["other"] == (2,)  # refused later, with the model's names
  cache = onnx.helper.make_tensor_value_info("past", onnx.TensorProto.FLOAT16,
    ["batch_size", 2, "past_sequence_length", "kv_cache_dim"])  # fmt: skip
  mask = onnx.helper.make_tensor_value_info(
    "mask", onnx.TensorProto.INT64, ["batch_size", "total_sequence_length"]
  )
  model = onnx.load(path / "model.onnx", load_external_data=False)
  model.graph.input.extend([cache, mask])
  onnx.save(model, path / "model.onnx")
  found = known.sizes("model.onnx", {})
  assert found["past_sequence_length"] == (1024,) and found["total_sequence_length"] == (512,)
  assert found["kv_cache_dim"] == (64,)
  grows = json.loads(json.dumps(config_of()))
  grows["search"] = {"max_length": 64, "past_present_share_buffer": False}
  (path / CONFIG).write_text(json.dumps(grows))
  found = GenaiFolder.read(path).sizes("model.onnx", {})
  assert (found["past_sequence_length"], found["sequence_length"]) == ((31,), (1, 16))


def test_every_model_of_a_folder(tmp_path):
  """A vision encoder, a pipeline's stages, the same file twice."""
  stages = [{"embed": {"filename": "embed.onnx"}}, {"head": {"filename": "model.onnx"}}]
  config = config_of(vision={"filename": "vision.onnx"}, pipeline=stages)
  path = folder(tmp_path / "llm", config, ("model.onnx", "vision.onnx", "embed.onnx"))
  found = GenaiFolder.read(path)
  assert found.models == ("model.onnx", "vision.onnx", "embed.onnx") and len(found.parts) == 4
  out = tmp_path / "out"
  found.begin(out)
  for name in found.models:
    model = onnx.load(path / name, load_external_data=False)
    if name != "vision.onnx":
      model.graph.node[0].domain = "ai.mirage.v1.sm90a"
    (out / name).write_bytes(model.SerializeToString())
  assert found.finish(out) == ("model.onnx", "embed.onnx")
  made = json.loads((out / CONFIG).read_text())["model"]
  options = [s.get("session_options", {}).get(LIBRARY_OPTION) for s in (
    made["decoder"], made["vision"], made["pipeline"][0]["embed"], made["pipeline"][1]["head"])]  # fmt: skip
  assert options == [LIBRARY_NAME, None, LIBRARY_NAME, LIBRARY_NAME]
  assert main(["optimize", str(path), "-o", str(out), "--json"]) == 2


BAD = {
  "no config": (None, "has no genai_config.json"),
  "no JSON": ("{", "cannot be read"),
  "no model": ('{"model": {}}', "names no model"),
  "a list": ("[]", "names no model"),
  "elsewhere": ('{"model": {"decoder": {"filename": "../model.onnx"}}}', "no file of the folder"),
  "missing": ('{"model": {"decoder": {"filename": "other.onnx"}}}', "no file of the folder"),
  "library": (json.dumps({"model": {"decoder": {
    "filename": "model.onnx", "session_options": {LIBRARY_OPTION: "mine.so"}}}}), "already"),
  "a long name": (f'{{"model": {{"filename": "{"x" * 400}.onnx"}}}}', "no file of the folder"),
  "a name with NUL": ('{"model": {"decoder": {"filename": "\\u0000.onnx"}}}', "no file of the folder"),
  "half a character": ('{"model": {"decoder": {"filename": "model.onnx", "x": "\\ud800"}}}', "surrogates"),
  "deep": ('{"model": ' * 5000 + "{}" + "}" * 5000, "recursion"),
  "large": ('{"model": "' + "x" * MOST_BYTES + '"}', "larger than 16 MiB"),
  "a long number": ('{"model": {"context_length": ' + "9" * 5000 + "}}", "limit"),
}  # fmt: skip


@pytest.mark.parametrize("case", BAD)
def test_folders_that_are_refused(tmp_path, case, capsys):
  text, said = BAD[case]
  path = folder(tmp_path / "llm")
  (path / CONFIG).unlink()
  if text is not None:
    (path / CONFIG).write_text(text)
  with refused("FOLDER_INVALID", said):
    GenaiFolder.read(path)
  assert main(["optimize", str(path), "-o", str(tmp_path / "out")]) == 2
  assert "FOLDER_INVALID" in capsys.readouterr().err and not (tmp_path / "out").exists()


@pytest.mark.parametrize("make", [os.mkfifo, lambda p: os.symlink("/dev/zero", p)], ids=["a pipe", "no end"])
def test_a_config_that_is_no_file(tmp_path, make):
  path = folder(tmp_path / "llm")
  (path / CONFIG).unlink()
  make(path / CONFIG)
  with refused("FOLDER_INVALID", "no regular file"):
    GenaiFolder.read(path)


BESIDE = {
  "a pipe": (os.mkfifo, "no file that can be copied"),
  "without an end": (lambda p: os.symlink("/dev/zero", p), "no file that can be copied"),
  "to nothing": (lambda p: os.symlink("nothing", p), "no file that can be copied"),
  "in a circle": (lambda p: os.symlink(".", p), "'sub/beside' is a link to a folder"),
  "elsewhere": (lambda p: os.symlink("/etc", p), "'sub/beside' is a link to a folder"),
}


@pytest.mark.parametrize("case", BESIDE)
def test_what_lies_beside_and_is_not_copied(tmp_path, case, capsys):
  make, said = BESIDE[case]
  path = folder(tmp_path / "llm")
  make(path / "sub" / "beside")
  assert main(["optimize", str(path), "-o", str(tmp_path / "out")]) == 2
  assert said in (err := capsys.readouterr().err) and "FOLDER_INVALID" in err
  assert not (tmp_path / "out").exists()


def test_a_link_to_a_file_is_a_file(tmp_path):
  path = folder(tmp_path / "llm")
  (tmp_path / "blob").write_text("{}")
  (path / "tokenizer.json").unlink()
  (path / "tokenizer.json").symlink_to("../blob")  # as in the cache of a hub
  GenaiFolder.read(path).begin(tmp_path / "out")
  assert (tmp_path / "out" / "tokenizer.json").read_text() == "{}"
  assert not (tmp_path / "out" / "tokenizer.json").is_symlink()


def test_a_folder_larger_than_the_disk(tmp_path):
  path = folder(tmp_path / "llm")
  with (path / "sub" / "holes").open("wb") as file:
    file.truncate(1 << 42)
  with refused("OUTPUT_UNWRITABLE", "are to be copied"):
    GenaiFolder.read(path).begin(tmp_path / "out")
  assert not list((tmp_path / "out").iterdir())


@pytest.mark.parametrize("data", [b"", b"\x0a\xff\xff\xff\xff\x0fgarbage"])
def test_a_model_that_is_none(tmp_path, data, capsys):
  path = folder(tmp_path / "llm")
  (path / "model.onnx").write_bytes(data)
  assert main(["optimize", str(path), "-o", str(tmp_path / "out")]) == 2
  assert "NOT_ONNX" in capsys.readouterr().err


def test_a_folder_does_not_become_itself(tmp_path):
  path = folder(tmp_path / "llm")
  before = {n: (path / n).read_bytes() for n in names(path)}
  with refused("OUTPUT_IS_INPUT"):
    GenaiFolder.read(path).begin(path)
  with refused("OUTPUT_UNWRITABLE"):
    GenaiFolder.read(path).begin(path / "model.onnx")
  GenaiFolder.read(path).begin(path / "inside")  # is not copied into itself
  assert {n: (path / n).read_bytes() for n in before} == before
  assert not (path / "inside" / "inside").exists()
