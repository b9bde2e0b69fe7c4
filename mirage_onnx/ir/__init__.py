"""The two immutable IRs (Program/Region and UGraph) and their canonical text forms."""

from mirage_onnx.ir.dtype import DType, as_input, round_to
from mirage_onnx.ir.memory_order import dim_permutation
from mirage_onnx.ir.program import (
  Constant,
  Dim,
  Node,
  Operand,
  Program,
  Step,
  StepAttr,
  Tensor,
  symbols_of,
)
from mirage_onnx.ir.region import Region, RegionTensor
from mirage_onnx.ir.runtime_extent import Monomial
from mirage_onnx.ir.text import parse_ugraph, print_kernel, print_ugraph
from mirage_onnx.ir.ugraph import (
  BlockOp,
  Candidate,
  Kernel,
  KernelParams,
  KTensor,
  Layout,
  Phase,
  Save,
  UGraph,
  is_part_axis,
  part_axis,
  ugraph_extents,
)
from mirage_onnx.ir.view import View, Window, in_order
