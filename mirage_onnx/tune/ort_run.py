"""ONNX Runtime in a measurement: a region as a model of its own, and its run on our stream."""

from collections.abc import Callable, Mapping
from contextlib import suppress
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, ValueInfoProto, helper, numpy_helper

from mirage_onnx.importer import LoadedModel
from mirage_onnx.importer.constants import known_values
from mirage_onnx.importer.split_caches import CACHED
from mirage_onnx.importer.split_norms import whole_norms
from mirage_onnx.importer.split_windows import before_windows, image_of, whole_windows
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.tune.device import Gpu

#: Elements of a constant that a hollow model has.
HELD = 64


def region_model(
  loaded: LoadedModel, region: Region, *, hollow: bool = False, outside: bool = False
) -> onnx.ModelProto:
  """The region's own ONNX nodes as a model of its sizes: activations in, outputs out.

  Parts of an operator that was taken apart are that operator again, with those in front of them.
  ``hollow``: of constants of more than ``HELD`` elements only types and shapes, which is no model to run.
  ``outside``: constants that are in files of ``loaded`` stay there (``own_run``).
  """
  values = known_values(loaded)
  inputs = {i.source.name: i for i in region.given if not i.is_weight}
  outputs = {o.source.name: o for o in region.outputs}
  nodes = [loaded.node(n) for n in region.nodes]
  images = _images(loaded, region)
  nodes[:0] = [n for rows, (before, _) in images.items() for n in before if rows in inputs]
  made = {o for n in nodes for o in n.output}
  shapes = {s.output.name: s.output.shape for s in region.steps}
  initializers = {}
  for k, node in enumerate(nodes):
    for place, name in enumerate(node.input):
      if not name or name in made | set(inputs) | {b[0].input[0] for b, _ in images.values()}:
        continue
      if name in values:
        initializers[name] = stored_constant(loaded, values[name], name, hollow=hollow, outside=outside)
      elif node.op_type == CACHED:  # how long the longest is: half of what the cache has room for
        cache = next(i.source for i in inputs.values() if i.source.name == node.input[3])
        held = max(1, region.shape(cache)[2] // 2)
        initializers[name] = numpy_helper.from_array(np.array(held, np.int32), name)
      else:  # a shape, or axes, that the model computes elsewhere: the result's shape says it
        assert place == 1
        shape = np.array(shapes[node.output[0]], np.int64)
        op = "Expand" if node.op_type == "Expand" else "Reshape"
        given = [node.input[0], f"{node.output[0]}/shape"]
        nodes[k] = helper.make_node(op, given, node.output)
        initializers[given[1]] = numpy_helper.from_array(shape, given[1])

  def info(t: RegionTensor, name: str = "") -> ValueInfoProto:
    dtype = helper.np_dtype_to_tensor_dtype(t.dtype.numpy)
    return helper.make_tensor_value_info(name or t.source.name, dtype, region.shape(t.source))

  def pixels(rows: str) -> ValueInfoProto:
    before, shape = images[rows]
    t = inputs[rows]
    image = image_of(before, np.broadcast_to(np.int8(0), region.shape(t.source)), shape)
    dtype = helper.np_dtype_to_tensor_dtype(t.dtype.numpy)
    return helper.make_tensor_value_info(before[0].input[0], dtype, image.shape)

  # What nobody reads of a cache, too, so that it can be where the cache is.
  beside = [info(inputs[i], o) for n in nodes for o, i in _caches(n) if i in inputs and o not in outputs]
  graph = helper.make_graph(
    nodes, "region",
    [*(info(t) for n, t in inputs.items() if n not in images), *(pixels(n) for n in images)],
    [*map(info, outputs.values()), *beside],
    list(initializers.values()),
  )  # fmt: skip
  model = model_of(loaded, graph)
  whole_norms(model)  # what is two nodes in the graph that is searched runs as the one that it was
  if images:
    whole_windows(model)
  return model


def region_feeds(
  loaded: LoadedModel, region: Region, data: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
  """``data``, by what the inputs of the region are parts of, for the inputs of ``region_model``."""
  feeds = {i.source.name: data[i.source.name] for i in region.given if not i.is_weight}
  for rows, (before, shape) in _images(loaded, region).items():
    feeds[before[0].input[0]] = image_of(before, feeds.pop(rows), shape)
  return feeds


def _images(loaded: LoadedModel, region: Region) -> dict[str, tuple[list[onnx.NodeProto], tuple[int, ...]]]:
  """Inputs that are the rows of a product of windows, if nothing else reads them: what makes them.

  And the dimensions of an image in windows.
  """
  own = [loaded.node(n) for n in region.nodes]
  before = before_windows(loaded.proto, own)
  given = {i.source.name for i in region.given if not i.is_weight}
  if not before or before[0].input[0] in given or sum(before[-1].output[0] in n.input for n in own) != 1:
    return {}
  sizes = loaded.read(known_values(loaded)[before[0].input[1]])
  found = {before[-1].output[0]: (before, tuple(map(int, sizes)))}
  return {rows: how for rows, how in found.items() if rows in given}


def _caches(node: onnx.NodeProto) -> list[tuple[str, str]]:
  """The outputs of a node that are caches, and the inputs in whose memory a decoder has them."""
  return list(zip(node.output[1:3], node.input[3:5], strict=True)) if node.op_type == CACHED else []


def shared_caches(graph: onnx.GraphProto) -> dict[str, str]:
  """Outputs of a model that are in the memory of an input in a decoder -> that input."""
  given, made = ({v.name for v in values} for values in (graph.input, graph.output))
  return {o: i for n in graph.node for o, i in _caches(n) if o in made and i in given}


def model_of(loaded: LoadedModel, graph: onnx.GraphProto) -> onnx.ModelProto:
  """A model of nodes of ``loaded``, which onnxruntime reads whatever wrote the original."""
  return helper.make_model(
    graph, opset_imports=loaded.proto.opset_import, ir_version=min(loaded.proto.ir_version, 10)
  )


def stored_constant(
  loaded: LoadedModel, stored: TensorProto, name: str, *, hollow: bool, outside: bool = False
) -> TensorProto:
  """A constant of the model under a name; ``hollow``, ``outside``: as of ``region_model``."""
  if hollow and prod(stored.dims) > HELD:
    return TensorProto(name=name, data_type=stored.data_type, dims=stored.dims)
  if outside and stored.data_location == TensorProto.EXTERNAL:
    found = TensorProto()
    found.CopyFrom(stored)
    found.name = name
    return found
  return numpy_helper.from_array(loaded.read(stored), name)


class BoundSession:
  """A session with inputs and outputs in memory of ``device``, of any element type.

  numpy has no bfloat16 that onnxruntime takes, so memory is made by ONNX's types, and bytes are
  copied by address. ``write``: (address, array), what puts bytes there; ``read``: the way back.
  ``shared``: outputs in the memory of an input.
  """

  def __init__(
    self,
    session: Any,
    feeds: Mapping[str, np.ndarray],
    device: str,
    write: Callable[[int, np.ndarray], None],
    read: Callable[[int, tuple[int, ...], np.dtype], np.ndarray],
    shared: Mapping[str, str] | None = None,
  ) -> None:
    import onnxruntime as ort

    self.session, self.binding, self._read = session, session.io_binding(), read
    made = ort.OrtValue.ortvalue_from_shape_and_type
    self.inputs, self.outputs = dict[str, Any](), dict[str, Any]()
    for i in session.get_inputs():
      kind, x = _element_type(i.type), feeds[i.name]
      values = np.ascontiguousarray(x).astype(helper.tensor_dtype_to_np_dtype(kind), copy=False)
      self.inputs[i.name] = value = made(list(x.shape), kind, device, 0)
      write(value.data_ptr(), values)
      self.binding.bind_ortvalue_input(i.name, value)
    for o in session.get_outputs():
      if o.name in (shared or {}):
        self.outputs[o.name] = self.inputs[(shared or {})[o.name]]
      else:
        self.outputs[o.name] = made(list(o.shape), _element_type(o.type), device, 0)
      self.binding.bind_ortvalue_output(o.name, self.outputs[o.name])

  def results(self) -> dict[str, np.ndarray]:
    """What is in the memory of the outputs."""
    return {
      name: self._read(v.data_ptr(), tuple(v.shape()), helper.tensor_dtype_to_np_dtype(v.element_type()))
      for name, v in self.outputs.items()
    }


def _element_type(text: str) -> int:
  """``tensor(bfloat16)`` -> ONNX's number of that type."""
  return int(TensorProto.DataType.Value(text.removeprefix("tensor(").removesuffix(")").upper()))


#: The folder of the data of a model that is no file.
FOLDER_KEY = "session.model_external_initializers_file_folder_path"


class OrtRun:
  """A run of a model of static shapes by the CUDA provider, on the GPU's stream.

  ``make`` makes the session (default: onnxruntime's own); ``shared`` as of ``BoundSession``; ``folder``: of
  what the model has in files. The call returns when the work is on the stream, not when it is done.
  """

  def __init__(
    self,
    gpu: Gpu,
    model: str | bytes,
    feeds: Mapping[str, np.ndarray],
    *,
    make: Callable[..., Any] | None = None,
    cuda_graph: bool = False,
    shared: Mapping[str, str] | None = None,
    folder: Path | None = None,
  ) -> None:
    import onnxruntime as ort

    self._gpu = gpu
    options = ort.SessionOptions()
    options.log_severity_level = 3
    if folder is not None:
      options.add_session_config_entry(FOLDER_KEY, str(folder))
    provider = {"user_compute_stream": str(gpu.stream_address)}
    if cuda_graph:
      provider["enable_cuda_graph"] = "1"
    self.session = (make or ort.InferenceSession)(
      model, options, providers=[("CUDAExecutionProvider", provider)]
    )
    if self.session.get_providers()[0] != "CUDAExecutionProvider":
      raise RuntimeError("onnxruntime fell back to the CPU")
    self._bound = BoundSession(self.session, feeds, "cuda", gpu.write, gpu.get, shared)
    self.inputs, self.outputs = self._bound.inputs, self._bound.outputs
    self._options = ort.RunOptions()
    self._options.add_run_config_entry("disable_synchronize_execution_providers", "1")
    for _ in range(4):  # allocations, and with cuda_graph its capture
      self()
    gpu.wait()

  def __call__(self) -> None:
    self.session.run_with_iobinding(self._bound.binding, self._options)

  def captured(self) -> Callable[[], None]:
    """A replay of what the run puts on the stream."""
    return self._gpu.capture(self)

  def results(self) -> dict[str, np.ndarray]:
    """The outputs after all that is on the stream."""
    return self._bound.results()


def own_run(
  gpu: Gpu, loaded: LoadedModel, model: Callable[[bool], onnx.ModelProto], feeds: Mapping[str, np.ndarray]
) -> OrtRun:
  """The run of a part of ``loaded``; ``model``: makes it, with its constants in their files or without.

  What is in files onnxruntime reads there: a session of a head of 1 GB in one message took 13 to 16 s, in
  which nobody else had the GPU. Where it does not like a file (a link out of the folder), all is copied.
  """
  here = model(True)
  shared = shared_caches(here.graph)
  if any(t.data_location == TensorProto.EXTERNAL for t in here.graph.initializer):
    with suppress(Exception):
      return OrtRun(gpu, here.SerializeToString(), feeds, shared=shared, folder=loaded.base_dir)
    here = model(False)
  return OrtRun(gpu, here.SerializeToString(), feeds, shared=shared)
