"""Triton Inference Server's configuration, read with the server's own protobuf (the package tritonclient)."""

import importlib.util
from pathlib import Path

import onnx
import pytest
from google.protobuf import text_format

from mirage_onnx.custom_op.library import LIBRARY_NAME

CONFIG = Path(__file__).parents[2] / "examples/triton_server/encoder/config.pbtxt"


@pytest.fixture(scope="module")
def messages():
  """The module of messages alone: the package's own __init__ wants gRPC."""
  found = importlib.util.find_spec("tritonclient")
  if found is None:
    pytest.skip("tritonclient is not installed")
  (folder,) = found.submodule_search_locations
  path = Path(folder) / "grpc" / "model_config_pb2.py"
  spec = importlib.util.spec_from_file_location("triton_model_config", path)
  module = importlib.util.module_from_spec(spec)
  spec.loader.exec_module(module)
  return module


@pytest.fixture(scope="module")
def config(messages):
  return text_format.Parse(CONFIG.read_text(), messages.ModelConfig())


def test_the_library_is_registered(config):
  (library,) = config.model_operations.op_library_filename
  assert Path(library).is_absolute() and Path(library).name == LIBRARY_NAME


def test_names_types_and_sizes(config, messages):
  """An encoder of dynamic batch and sequence: the server adds no batch dimension of its own."""
  assert (config.backend, config.max_batch_size) == ("onnxruntime", 0)
  assert [i.name for i in config.input] == ["input_ids", "attention_mask"]
  assert all(i.data_type == messages.TYPE_INT64 and list(i.dims) == [-1, -1] for i in config.input)
  (output,) = config.output
  assert (output.data_type, list(output.dims)) == (messages.TYPE_FP16, [-1, -1, 768])
  (group,) = config.instance_group
  assert (group.kind, group.count) == (messages.ModelInstanceGroup.KIND_GPU, 1)
  assert not config.HasField("dynamic_batching")  # with a batch size of 0 the server refuses it


def test_where_the_model_lies(config):
  """The folder's name is the model's name where the file gives none, and 1 its version."""
  assert config.name in ("", CONFIG.parent.name) and (CONFIG.parent / "1").is_dir()
  assert config.default_model_filename in ("", "model.onnx")


def test_a_field_that_the_server_does_not_know(messages):
  text = CONFIG.read_text()
  for wrong in (
    text.replace("op_library_filename", "op_library_file"),
    text.replace("TYPE_INT64", "INT64"),
    text.replace("KIND_GPU", "GPU"),
  ):
    assert wrong != text
    with pytest.raises(text_format.ParseError):
      text_format.Parse(wrong, messages.ModelConfig())


def test_types_of_onnx_have_their_names(messages):
  """The suffix of a type is not always ONNX's: what the page's reader has to write for fp16, bf16, int64."""
  for ours, theirs in (("FLOAT16", "FP16"), ("BFLOAT16", "BF16"), ("FLOAT", "FP32"), ("INT64", "INT64")):
    assert hasattr(onnx.TensorProto, ours) and hasattr(messages, f"TYPE_{theirs}")
