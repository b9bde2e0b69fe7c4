"""No 16-bit float is left, wherever it is said; the rest stays."""

import numpy as np
import onnx
from coverage_table.widen import widened
from onnx import TensorProto, helper, numpy_helper
from small_models import Net


def test_everything_is_widened():
    net = Net()
    x, mask = net.input(2, 3), net.input(dtype=np.bool_)
    value = numpy_helper.from_array(np.float16([0.25]), "quarter")
    net.nodes.append(helper.make_node("Constant", [], ["k"], value=value))
    branches = [_branch(factor) for factor in (2.0, 3.0)]
    y = net.If(mask, then_branch=branches[0], else_branch=branches[1])
    model = net.model(net.cast(net.Add(net.Mul(x, "k"), y), np.float32), net.cast(x, np.float16))
    model.functions.append(
        helper.make_function(
            "local", "F", ["a"], ["b"],
            [helper.make_node("Cast", ["a"], ["b"], to=TensorProto.BFLOAT16)],
            [helper.make_opsetid("", 20)],
        )
    )  # fmt: skip
    before = model.SerializeToString()
    found = widened(model)
    assert model.SerializeToString() == before
    text = str(found)
    assert "data_type: 10" not in text and "elem_type: 10" not in text
    assert "i: 16" not in text and "i: 10\n" not in text
    assert [i.type.tensor_type.elem_type for i in found.graph.input] == [
        TensorProto.FLOAT, TensorProto.BOOL
    ]  # fmt: skip
    (constant,) = [n for n in found.graph.node if n.op_type == "Constant"]
    assert numpy_helper.to_array(constant.attribute[0].t).tolist() == [0.25]
    onnx.checker.check_model(found, full_check=True)


def _branch(factor):
    value = numpy_helper.from_array(np.full((2, 3), factor, np.float16), "values")
    output = helper.make_tensor_value_info("out", TensorProto.FLOAT16, [2, 3])
    return helper.make_graph(
        [helper.make_node("Identity", ["values"], ["out"])], "branch", [], [output], [value]
    )
