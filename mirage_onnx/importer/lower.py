"""One ONNX node -> a Node of the program: its steps, or the reason why it has none."""

from onnx import AttributeProto, GraphProto, NodeProto

from mirage_onnx.errors import RejectionError
from mirage_onnx.importer.context import Context
from mirage_onnx.importer.graph import captured_names, domain_of, reads, subgraphs
from mirage_onnx.importer.semantics import DOMAINS, NOT_IN_ONNX, SEMANTICS, Rule
from mirage_onnx.importer.shapes import has_schema
from mirage_onnx.importer.split_projections import part_of
from mirage_onnx.importer.split_windows import is_behind_windows, is_window_part
from mirage_onnx.ir import DType, Node, Tensor
from mirage_onnx.ir.program import is_places


def lower_node(context: Context, functions: frozenset[tuple[str, str]]) -> Node:
  """Lower the node of a context; ``functions`` are the model's own, which shadow operators."""
  node = context.node
  barrier = None
  try:
    rule = find_rule(context, functions)
    for tensor in _data(context, rule):
      check_tensor(context, tensor, rule)
    rule.lower(context)
  except RejectionError as e:
    barrier = e.rejection
  outputs = tuple(o for o in node.output if o)
  steps = () if barrier else tuple(context.steps)
  inputs = (*reads(node), *(() if barrier else context.beyond))
  whole = part_of(node) or ("Conv" if is_window_part(node) else "")
  behind = is_behind_windows(node)
  return Node(context.name, node.op_type, inputs, outputs, steps, barrier, whole, behind)


def holder(context: Context, node: NodeProto, closed: str) -> Node:
  """The barrier that a node with subgraphs is, of which only what it reads is in the flat graph."""
  why = context.reject(_held(node, closed), "SUBGRAPH").rejection
  return Node(
    context.name, node.op_type, reads(context.node), tuple(o for o in context.node.output if o), (), why
  )


def find_rule(c: Context, functions: frozenset[tuple[str, str]]) -> Rule:
  """The rule of a node.

  Raises:
      RejectionError: SUBGRAPH, CUSTOM_DOMAIN or OP_UNKNOWN.
  """
  node, domain = c.node, domain_of(c.node)
  if subgraphs(node):
    raise c.reject(_held(node, "they cannot be opened"), "SUBGRAPH")
  if (node.domain, node.op_type) in functions:
    raise c.reject(
      "is a function of the model (onnx.inliner.inline_local_functions puts its nodes in its place)",
      "CUSTOM_DOMAIN",
    )
  if domain not in DOMAINS:
    raise c.reject(f"belongs to domain {domain!r}", "CUSTOM_DOMAIN")
  rule = SEMANTICS.get((domain, node.op_type))
  if rule is None:
    raise c.reject("what it computes is not known here", "OP_UNKNOWN")
  if domain == "" and node.op_type not in NOT_IN_ONNX and not has_schema(node, c.opset):
    raise c.reject(f"does not exist in opset {c.opset}", "OP_UNKNOWN")
  return rule


def _held(node: NodeProto, closed: str) -> str:
  """What the subgraphs of a node are, and whether they are optimized."""
  kinds = (AttributeProto.GRAPH, AttributeProto.GRAPHS)
  names = " and ".join(a.name for a in node.attribute if a.type in kinds)
  nodes, outer = sum(map(_size, subgraphs(node))), len(captured_names(node))
  what = f"its {names} ({nodes} nodes, which read {outer} values from outside)"
  if closed:
    return f"{what} run as they are: {closed}"
  return f"{what} are optimized for themselves: no kernel reaches across their borders"


def _size(graph: GraphProto) -> int:
  return sum(1 + sum(map(_size, subgraphs(n))) for n in graph.node)


def _data(c: Context, rule: Rule) -> list[Tensor]:
  """The tensors of the node's math: inputs that are no parameters, and used outputs."""
  node: NodeProto = c.node
  if not node.output or not node.output[0]:
    raise c.reject("has no first output")
  inputs = [c.tensor(i) for i in range(len(node.input)) if c.has(i) and i not in rule.parameters]
  return [*inputs, c.output()]


def check_tensor(c: Context, t: Tensor, rule: Rule) -> None:
  """A tensor of the math is of a type that the rule takes, static, and holds something.

  Raises:
      RejectionError: OP_FORM, DTYPE, RANK_UNKNOWN, DYNAMIC_DIM or ZERO_SIZE.
  """
  if is_places(t.name):  # of a constant of that name kernels read nothing
    raise c.reject(f"{t.name!r} is a name of this program's own")
  if t.dtype is None and t.shape is None:
    raise c.reject(f"the type of {t.name!r} is not known", "RANK_UNKNOWN")
  if t.dtype is None or not _takes(rule, t.dtype):
    what = t.dtype or "of a type that is not supported"
    raise c.reject(f"{t.name!r} is {what}", "DTYPE")
  if t.shape is None:
    raise c.reject(f"the shape of {t.name!r} is not known", "RANK_UNKNOWN")
  for axis, d in enumerate(t.shape):
    # A new name of an output will stand for what its rule computes.
    if isinstance(d, str) and not (c.symbols.usable and t.name in c.node.output):
      where = f"dimension {axis} of {t.name!r}"
      name = "" if d == f"{t.name}:{axis}" or d.startswith("unk__") else f" ({d!r})"
      raise c.reject(f"{where}{name} is known only at run time", "DYNAMIC_DIM")
    if d == 0:
      raise c.reject(f"{t.name!r} holds no elements", "ZERO_SIZE")


def _takes(rule: Rule, dtype: DType) -> bool:
  if dtype is DType.BOOL:
    return rule.truth
  return dtype.is_float or (rule.integers and dtype.is_computed)
