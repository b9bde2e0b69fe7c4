"""What ``superoptimize`` returns: a verified µGraph that prints, draws and runs itself."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from typing import Any

from mirage_onnx.errors import MirageError
from mirage_onnx.graphs.arrays import Library, library_of
from mirage_onnx.graphs.device import ArrayGpu, Loaded, launch_on_device, load_on_device
from mirage_onnx.graphs.host import run_on_host
from mirage_onnx.graphs.python_text import python_text
from mirage_onnx.graphs.shapes import Sizes, sizes_of_call
from mirage_onnx.graphs.triton_text import triton_text
from mirage_onnx.inspection.dot import to_dot
from mirage_onnx.inspection.svg import to_svg
from mirage_onnx.ir import Candidate, KernelParams, Program, Region, UGraph, print_ugraph
from mirage_onnx.superopt.result import ProofLike
from mirage_onnx.target import Target


@dataclass(frozen=True, slots=True)
class OptimizedGraph:
  """A µGraph with numbers that computes a kernel graph, proven.

      outputs = optimized_graph([q, k, v])

  ``proof``: the random test that it passed, with its number of draws and the bound of a false
  accept. ``predicted_us``: the cost model's time of one run on ``target``; nothing was measured.
  """

  program: Program
  region: Region
  candidate: Candidate
  proof: ProofLike
  target: Target
  _loaded: dict[tuple[object, ...], Loaded] = field(default_factory=dict, repr=False, compare=False)

  @property
  def ugraph(self) -> UGraph:
    return self.candidate.ugraph

  @property
  def params(self) -> tuple[KernelParams, ...]:
    """The numbers of each kernel, in launch order."""
    return self.candidate.params

  @property
  def predicted_us(self) -> float:
    return self.candidate.predicted_us

  def __call__(self, inputs: Sequence[Any]) -> list[Any]:
    """The outputs of the graph on ``inputs``, arrays in the order of ``new_input``.

    numpy arrays (and torch tensors on the CPU) go through the interpreter: every value of the
    µGraph rounded to its type. cupy arrays and torch CUDA tensors are given to the kernels, on
    their device and its current stream. The outputs are arrays of the same library, in the
    order of ``mark_output``. Shapes may be others than the graph's, as ``shapes.py`` says.

    Raises:
        MirageError: GRAPH_OPERAND (an array that does not fit), NO_GPU (kernels for another
            GPU), COMPILER_MISSING.
        RejectionError: EMIT_UNSUPPORTED, LAYOUT, SMEM, COMPILE_FAILED or SPILLS: there is no
            CUDA for this µGraph at these shapes.
    """
    library = library_of(inputs)
    sizes = sizes_of_call(self.program, self.region, [library.shape(x) for x in inputs])
    arrays = dict(zip(self.program.inputs, inputs, strict=True))
    self._check_types(library, arrays)
    devices = {library.device(x) for x in inputs}
    if len(devices) != 1:
      raise MirageError("GRAPH_OPERAND", "the arrays are on different devices")
    device = devices.pop()
    if device is None:
      host = {n: library.to_host(x) for n, x in arrays.items()}
      found = run_on_host(self.region, self.candidate, sizes.extents, host)
      shaped = {n: x.reshape(sizes.shapes[n]) for n, x in found.items()}
      return [library.from_host(shaped[n]) for n in self.program.outputs]
    made = self._on_device(library, device, arrays, sizes)
    return [made[n] for n in self.program.outputs]

  def _on_device(
    self, library: Library, device: int, arrays: Mapping[str, Any], sizes: Sizes
  ) -> dict[str, Any]:
    gpu = ArrayGpu(device, library.stream(device), self.target)
    key = (device, *sorted(sizes.extents.items()))
    with gpu.current():
      if key not in self._loaded:
        found = load_on_device(gpu, self.region, self.candidate, sizes.extents)
        self._loaded[key] = found
      dense = {n: library.dense(x) for n, x in arrays.items()}
      return launch_on_device(
        gpu, self._loaded[key], self.region, self.candidate, dense, sizes.shapes,
        library=library, device=device,
      )  # fmt: skip

  def _check_types(self, library: Library, arrays: Mapping[str, Any]) -> None:
    for name, x in arrays.items():
      dtype = self.program.tensors[name].dtype
      assert dtype is not None
      if library.dtype(x) != (wanted := dtype.numpy.name):
        reason = f"{name} of {library.dtype(x)}: the graph has {wanted}"
        raise MirageError("GRAPH_OPERAND", reason)

  def summary(self) -> str:
    """Cost and proof in one line."""
    count = len(self.ugraph.kernels)
    known = f"{self.predicted_us:.2f} us" if isfinite(self.predicted_us) else "no time"
    return (
      f"{count} kernel{'s' if count > 1 else ''}, predicted {known} on "
      f"{self.target.name}; equal in {self.proof.draws} random draws, false accept "
      f"<= {self.proof.bound:.1e}"
    )

  def __repr__(self) -> str:
    return f"<OptimizedGraph: {self.summary()}>"

  def __str__(self) -> str:
    """The canonical text of the µGraph, with what is known of it as comments."""
    names = zip(self.ugraph.kernels, self.params, strict=True)
    numbers = [f"# {kernel.name}: {params.to_text()}" for kernel, params in names]
    return "\n".join([f"# {self.summary()}", *numbers, print_ugraph(self.ugraph)])

  def to_dot(self) -> str:
    """The µGraph as a DOT drawing; the level of every value is its colour."""
    return to_dot(self.ugraph, self.params)

  def visualize(self, path: str | Path) -> None:
    """Write the drawing to ``path``: SVG if it ends in ``.svg``, else DOT."""
    is_svg = Path(path).suffix == ".svg"
    text = to_svg(self.ugraph, self.params) if is_svg else self.to_dot()
    Path(path).write_text(text, encoding="utf-8")

  def generate_python_program(self, path: str | Path) -> None:
    """Write a Python file that defines the graph and runs this µGraph (``python_text``)."""
    text = python_text(self.program, self.candidate)
    Path(path).write_text(text, encoding="utf-8")

  def generate_triton_program(self, path: str | Path) -> None:
    """Write a Python file with the µGraph's kernels in Triton, for torch tensors at the graph's shapes.

    It is the µGraph's algorithm with its tiles; clusters and layouts are not Triton's. It is not what
    calling the graph runs, and mostly slower (bench/results/h100/triton.json).

    Raises:
        RejectionError: TRITON_UNSUPPORTED, before the file is written.
    """
    text = triton_text(self.program, self.region, self.candidate, self.summary(), self.target)
    Path(path).write_text(text, encoding="utf-8")
