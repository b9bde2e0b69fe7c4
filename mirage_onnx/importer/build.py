"""The whole model as a Program."""

from mirage_onnx.errors import Rejection
from mirage_onnx.failures import refusal
from mirage_onnx.importer.constants import constant_values, read_constants
from mirage_onnx.importer.context import Context
from mirage_onnx.importer.graph import reads
from mirage_onnx.importer.load import LoadedModel
from mirage_onnx.importer.lower import holder, lower_node
from mirage_onnx.importer.masks import bands
from mirage_onnx.importer.symbols import Symbols
from mirage_onnx.ir.program import Node, Program, Tensor


def import_model(loaded: LoadedModel) -> Program:
  """Lower every node that has a meaning.

  Constant nodes are values, not operations: they appear in ``weights`` and ``constants`` and
  not in ``nodes``.
  """
  graph = loaded.proto.graph
  constants = read_constants(loaded)
  values = constant_values(loaded)
  named = dict(loaded.tensors)
  symbols = Symbols(named.values())
  outputs = {o for n in graph.node for o in n.output}
  flat = loaded.flat
  inner = {i for s in flat.sections for i in s.given} if flat else set[str]()
  tensors = {k: symbols.numbered(t) for k, t in named.items() if k not in outputs | inner}
  functions = frozenset((f.domain, f.name) for f in loaded.proto.functions)
  used = frozenset((*(o.name for o in graph.output), *(r for n in graph.node for r in reads(n))))
  nodes, implied, casts = [], dict[str, Tensor](), dict[str, str]()
  for index in loaded.order:
    proto = graph.node[index]
    made = [o for o in proto.output if o]
    if proto.op_type == "Constant" and proto.output[0] in values:
      tensors |= {o: named[o] for o in made}
      continue
    # A section knows the dimensions of what is around it, where they have numbers by now.
    tensors |= {i: symbols.numbered(named[i]) for i in reads(proto) if i in inner and i not in tensors}
    tensors |= {o: symbols.known(named[o]) for o in made}
    name = loaded.node_names[index]
    context = Context(proto, name, loaded.opset, tensors, constants, used, symbols, casts)
    held = flat.holders.get(index) if flat else None
    node = _lower(context, functions) if held is None else holder(context, *held)
    for s in node.steps:
      if s.output.name in made:
        named[s.output.name] = symbols.named(s.output, named[s.output.name])
    tensors |= {o: symbols.numbered(named[o]) for o in made}
    nodes.append(node)
    if proto.op_type in ("Cast", "CastLike") and not node.barrier:
      casts[proto.output[0]] = proto.input[0]
    implied |= context.beyond
  weights = frozenset((*values, *implied))
  return Program(
    inputs=tuple(i.name for i in graph.input if i.name not in inner),
    outputs=tuple(o.name for o in graph.output),
    nodes=tuple(nodes),
    tensors=named | implied,
    weights=weights,
    constants=constants.scalars,
    symbols=symbols.numbers,
    primes=symbols.names,
    repeats={loaded.node_names[i]: n for i, n in flat.repeats.items()} if flat else {},
    bands=bands(nodes, named | implied, weights, constants.read),
  )


def _lower(context: Context, functions: frozenset[tuple[str, str]]) -> Node:
  """Lower a node; one that contradicts itself where onnx does not look is a barrier.

  onnx has no schemas for com.microsoft, and checks few shapes of scales and biases; numpy
  broadcasts no more than 32 dimensions.
  """
  try:
    return lower_node(context, functions)
  except (LookupError, RuntimeError, TypeError, ValueError) as error:
    said = next(iter(str(error).splitlines()), "")
    reason = f"{context.node.op_type}: its attributes or shapes do not fit: {said}"
    why = Rejection("OP_FORM", reason, (context.name,))
  except Exception as error:
    why = refusal(error, "import", (context.name,))
  node = context.node
  outputs = tuple(o for o in node.output if o)
  return Node(context.name, node.op_type, reads(node), outputs, (), why)
