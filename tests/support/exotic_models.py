"""Small models with one replaceable region each, and beside it what no kernel stands for.

Every model has ``h = relu(rms(x) W)`` in fp16, which ``optimize`` replaces for an H200.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper
from protos import new_node, typed
from small_models import Net

ROWS, WIDTH = 8, 256
F16, F32, I64 = TensorProto.FLOAT16, TensorProto.FLOAT, TensorProto.INT64
BOOL, TEXT = TensorProto.BOOL, TensorProto.STRING


@dataclass(frozen=True)
class Exotic:
    build: Callable[[], onnx.ModelProto]
    runs: bool = True


#: By name, in the order of this file.
EXOTIC = {}


def with_region(extra=None, opset=21):
    net = Net(seed=3, opset=opset)
    hidden = net.Relu(net.MatMul(net.rms(net.input(ROWS, WIDTH)), net.weight(WIDTH, WIDTH)))
    model = net.model(hidden)
    if extra is not None:
        extra(model, hidden)
    return model


def _exotic(*, runs=True, opset=21):
    def add(extra):
        EXOTIC[extra.__name__] = Exotic(lambda: with_region(extra, opset), runs)
        return extra

    return add


def _value(name, kind=F16, shape=None):
    return typed(name, kind, shape)


def _output(model, name, kind=F16):
    model.graph.output.append(_value(name, kind))


def _constant(model, name, value):
    model.graph.initializer.append(numpy_helper.from_array(value, name))
    return name


def _node(model, op, inputs, outputs, **kw):
    model.graph.node.append(helper.make_node(op, inputs, outputs, name=f"{op}_{outputs[0]}", **kw))


# -- subgraphs


@_exotic()
def branches(model, h):
    """An If whose branches read the region's result and a weight from outside."""
    _constant(model, "yes", np.array(True))
    _constant(model, "outer", np.float16(3))
    graphs = [
        helper.make_graph([helper.make_node(op, [h, "outer"], ["r"])], op, [], [_value("r")])
        for op in ("Mul", "Add")
    ]
    _node(model, "If", ["yes"], ["z"], then_branch=graphs[0], else_branch=graphs[1])
    _output(model, "z")


@_exotic()
def loop(model, h):
    """A Loop that carries a value, scans one out and holds a weight of its own."""
    body = helper.make_graph(
        [
            new_node("Mul", "carried half", "scaled"),
            helper.make_node("Add", ["scaled", h], ["next"]),
            new_node("Identity", "next", "seen"),
            new_node("Identity", "go", "again"),
        ],
        "body",
        [_value("i", I64, ()), _value("go", BOOL, ()), _value("carried")],
        [_value("again", BOOL, ()), _value("next"), _value("seen")],
        [numpy_helper.from_array(np.float16(0.5), "half")],
    )
    _constant(model, "trips", np.int64(3))
    _node(model, "Loop", ["trips", "", h], ["last", "all"], body=body)
    _output(model, "last")
    _output(model, "all")


@_exotic()
def scan(model, h):
    body = helper.make_graph(
        [
            new_node("Add", "sum row", "more"),
            new_node("Identity", "more", "out"),
        ],
        "body",
        [_value("sum", F16, (WIDTH,)), _value("row", F16, (WIDTH,))],
        [_value("more", F16, (WIDTH,)), _value("out", F16, (WIDTH,))],
    )
    _constant(model, "zeros", np.zeros(WIDTH, np.float16))
    _node(model, "Scan", ["zeros", h], ["total", "sums"], num_scan_inputs=1, body=body)
    _output(model, "sums")


@_exotic()
def nested(model, h):
    """An If in an If in an If; the innermost reads the region's result."""
    _constant(model, "yes", np.array(True))
    graph = helper.make_graph([helper.make_node("Neg", [h], ["r0"])], "g0", [], [_value("r0")])
    for i in range(1, 3):
        node = helper.make_node("If", ["yes"], [f"r{i}"], then_branch=graph, else_branch=graph)
        graph = helper.make_graph([node], f"g{i}", [], [_value(f"r{i}")])
    _node(model, "If", ["yes"], ["z"], then_branch=graph, else_branch=graph)
    _output(model, "z")


# -- types


@_exotic()
def sequences(model, h):
    _node(model, "SequenceConstruct", [h, h], ["seq"])
    _node(model, "ConcatFromSequence", ["seq"], ["z"], axis=0)
    _output(model, "z")
    kind = helper.make_sequence_type_proto(helper.make_tensor_type_proto(F16, None))
    model.graph.output.append(helper.make_value_info("seq", kind))


@_exotic()
def optional(model, h):
    _node(model, "Optional", [h], ["maybe"])
    _node(model, "OptionalHasElement", ["maybe"], ["there"])
    _node(model, "OptionalGetElement", ["maybe"], ["z"])
    _output(model, "there", BOOL)
    _output(model, "z")


@_exotic()
def strings(model, h):
    """Text that is not ASCII, as weights and as attributes."""
    _constant(model, "words", np.array(["µGraph", "", "ß"], dtype=object))
    _node(model, "Constant", [], ["suffix"], value_strings=["a", "b", "c"])
    _node(model, "StringConcat", ["words", "suffix"], ["z"])
    _output(model, "z", TEXT)


@_exotic()
def sparse(model, h):
    values = numpy_helper.from_array(np.array([1.5, -2], np.float16), "few")
    places = numpy_helper.from_array(np.array([3, WIDTH - 1], np.int64), "few.places")
    model.graph.sparse_initializer.add(values=values, indices=places, dims=[WIDTH])
    _node(model, "Add", [h, "few"], ["z"])
    _output(model, "z")


@_exotic()
def quantized(model, h):
    """Quantize and back, a QLinearMatMul, and 4-bit weights in blocks."""
    _constant(model, "scale", np.float32(0.05))
    _constant(model, "zero", np.uint8(128))
    weight = np.random.default_rng(0).integers(0, 256, (WIDTH, 16)).astype(np.uint8)
    _constant(model, "wq", weight)
    _node(model, "Cast", [h], ["wide"], to=F32)
    _node(model, "QuantizeLinear", ["wide", "scale", "zero"], ["q"])
    quantity = ["q", "scale", "zero", "wq", "scale", "zero", "scale", "zero"]
    _node(model, "QLinearMatMul", quantity, ["qq"])
    _node(model, "DequantizeLinear", ["qq", "scale", "zero"], ["z"])
    packed = helper.make_tensor("w4", TensorProto.INT4, [16, 4], bytes(range(32)), raw=True)
    model.graph.initializer.append(packed)
    _constant(model, "scale4", np.linspace(0.5, 1, 16, dtype=np.float32).reshape(4, 4))
    _node(model, "DequantizeLinear", ["w4", "scale4"], ["w"], axis=0, block_size=4)
    _node(model, "MatMul", ["z", "w"], ["zz"])
    note = model.graph.quantization_annotation.add(tensor_name="z")
    note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="scale")
    _output(model, "zz", F32)


@_exotic()
def nothing(model, h):
    """An empty weight joins the region's result, as exporters write an empty cache."""
    _constant(model, "empty", np.zeros((0, WIDTH), np.float16))
    _node(model, "Concat", ["empty", h], ["z"], axis=0)
    _node(model, "Neg", ["empty"], ["e"])
    _output(model, "z")
    _output(model, "e")


@_exotic(runs=False)
def odd_types(model, h):
    """Weights of types that numpy lacks, and complex numbers."""
    for name in ("FLOAT8E4M3FN", "FLOAT8E5M2", "BFLOAT16", "COMPLEX64", "UINT4"):
        kind = TensorProto.DataType.Value(name)
        size = {"BFLOAT16": 8, "COMPLEX64": 32, "UINT4": 2}.get(name, 4)
        tensor = helper.make_tensor(name.lower(), kind, [4], bytes(range(size)), raw=True)
        model.graph.initializer.append(tensor)
        _node(model, "Identity", [name.lower()], [f"{name.lower()}.out"])
        _output(model, f"{name.lower()}.out", kind)


# -- foreign operators


@_exotic()
def function(model, h):
    """A function of the model that calls another, with an attribute given by reference."""
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid("local", 1)]
    leaky = new_node("LeakyRelu", "a", "b")
    leaky.attribute.add(name="alpha", ref_attr_name="slope", type=onnx.AttributeProto.FLOAT)
    inner = helper.make_function("local", "Leak", ["a"], ["b"], [leaky], opsets, ["slope"])
    call = new_node("Leak", "a", "c", domain="local", slope=0.25)
    twice = new_node("Add", "c c", "d")
    outer = helper.make_function("local", "Twice", ["a"], ["d"], [call, twice], opsets)
    model.functions.extend([inner, outer])
    model.opset_import.append(opsets[1])
    _node(model, "Twice", [h], ["z"], domain="local")
    _output(model, "z")


@_exotic(runs=False)
def custom(model, h):
    """An operator nobody knows, with every type of attribute, bytes that are no text among them."""
    model.opset_import.append(helper.make_opsetid("com.vendor", 7))
    blob = numpy_helper.from_array(np.arange(3, dtype=np.int16), "blob")
    graph = helper.make_graph([helper.make_node("Neg", [h], ["r"])], "inner", [], [_value("r")])
    _node(
        model, "Mystery", [h, "", h], ["z", "", "zz"], domain="com.vendor", whole=-3, real=0.1,
        text="µ", raw=b"\xff\xfe\x00", tensor=blob, graph=graph, list=[1, 2], reals=[0.5],
        texts=["a", "b"], tensors=[blob], graphs=[graph],
        kind=helper.make_tensor_type_proto(F16, [2]),
    )  # fmt: skip
    _node(model, "Mul", ["z", "zz"], ["product"])
    _output(model, "product")


@_exotic()
def microsoft(model, h):
    model.opset_import.append(helper.make_opsetid("com.microsoft", 1))
    _node(model, "Cast", [h], ["wide"], to=F32)
    _node(model, "QuickGelu", ["wide"], ["z"], domain="com.microsoft", alpha=1.5)
    _output(model, "z", F32)


@_exotic()
def classical(model, h):
    model.opset_import.append(helper.make_opsetid("ai.onnx.ml", 3))
    _node(model, "Cast", [h], ["wide"], to=F32)
    _node(model, "Normalizer", ["wide"], ["z"], domain="ai.onnx.ml", norm="L2")
    _output(model, "z", F32)


@_exotic(runs=False)
def training(model, h):
    """Dropout that trains, an optimizer's operator, and training information."""
    model.opset_import.append(helper.make_opsetid("ai.onnx.preview.training", 1))
    _constant(model, "ratio", np.float32(0.5))
    _constant(model, "trains", np.array(True))
    _node(model, "Dropout", [h, "ratio", "trains"], ["z", "mask"], seed=1)
    for name in ("rate", "step", "param", "grad", "moment"):
        _constant(model, name, np.int64(0) if name == "step" else np.float32(0.5))
    _node(
        model, "Momentum", ["rate", "step", "param", "grad", "moment"], ["p", "m"], alpha=0.9,
        beta=1.0, mode="standard", norm_coefficient=0.0, domain="ai.onnx.preview.training",
    )  # fmt: skip
    info = model.training_info.add()
    info.algorithm.CopyFrom(helper.make_graph([], "algorithm", [], []))
    info.update_binding.add(key="param", value="p")
    _output(model, "z")
    _output(model, "p", F32)


# -- what tools write


@_exotic()
def shared(model, h):
    """The region's weight is read by another node, and one lies unused."""
    weight = next(t.name for t in model.graph.initializer if list(t.dims) == [WIDTH, WIDTH])
    _node(model, "ReduceMax", [weight], ["largest"], keepdims=0)
    _output(model, "largest")
    _constant(model, "unused", np.arange(5))


@_exotic(opset=13)
def old(model, h):
    """IR version 3 with initializers that are inputs: they may be fed."""
    model.ir_version = 3
    mean = next(n for n in model.graph.node if n.op_type == "ReduceMean")
    axes = next(t for t in model.graph.initializer if t.name == mean.input.pop())
    mean.attribute.append(helper.make_attribute("axes", numpy_helper.to_array(axes)))
    model.graph.initializer.remove(axes)
    for tensor in model.graph.initializer:
        model.graph.input.append(_value(tensor.name, tensor.data_type, tuple(tensor.dims)))
    assert model.graph.output[0].name == h


@_exotic()
def decorated(model, h):
    """Everything a file may say that no node reads."""
    model.producer_name, model.producer_version = "exporter", "1.2"
    model.domain, model.model_version, model.doc_string = "org.example", 7, "model doc\nline 2"
    model.metadata_props.add(key="author", value="someone")
    graph = model.graph
    graph.doc_string = "graph doc"
    graph.metadata_props.add(key="g", value="h")
    graph.input[0].type.tensor_type.shape.dim[0].denotation = "DATA_BATCH"
    graph.input[0].doc_string = "what comes in"
    for i, tensor in enumerate(graph.initializer):
        tensor.doc_string = f"weight {i}"
    _node(model, "Hardmax", [h], ["z"], doc_string="one hot")
    graph.node[-1].metadata_props.add(key="pkg.torch.onnx.stack_trace", value="line 12")
    for name in (graph.node[0].output[0], "z"):  # a value of the region, and one outside
        note = graph.quantization_annotation.add(tensor_name=name)
        note.quant_parameter_tensor_names.add(key="SCALE_TENSOR", value="unused")
    _constant(model, "unused", np.arange(5))
    graph.value_info.append(_value("z", F16, (ROWS, WIDTH)))
    graph.value_info[-1].doc_string = "a value"
    graph.value_info[-1].metadata_props.add(key="v", value="i")
    model.opset_import.append(helper.make_opsetid("local", 1))
    twice = new_node("Add", "a a", "b")
    opsets = [helper.make_opsetid("", 21)]
    model.functions.append(
        helper.make_function("local", "Twice", ["a"], ["b"], [twice], opsets, overload="half")
    )
    model.functions[0].metadata_props.add(key="k", value="v")
    _node(model, "Twice", ["z"], ["zz"], domain="local", overload="half", doc_string="calls")
    graph.node[-1].metadata_props.add(key="n", value="twice")
    _output(model, "zz")
