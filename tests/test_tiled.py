"""``optimize(tiled=True)``: a region that contracts two activations, to the end."""

import numpy as np
import pytest
from small_models import Net, feeds, run_model

import mirage_onnx

TOLERANCE = 4e-3


def attention(queries, keys):
    net = Net(seed=5)
    q, k, v = (net.input(2, n, 64) for n in (queries, keys, keys))
    logits = net.Mul(net.MatMul(q, net.Transpose(k, perm=[0, 2, 1])), 0.125)
    return net, net.MatMul(net.Softmax(logits), v)


@pytest.mark.parametrize(("queries", "keys"), [(1, 96), (5, 257)])
def test_attention_becomes_kernels(queries, keys, rng):
    net, y = attention(queries, keys)
    model = net.model(y)
    # ONNX Runtime's kernels are faster, so says the prediction: the margin takes them anyway.
    result = mirage_onnx.optimize(model, target="h200", workers=1, margin=-20.0, tiled=True)
    replaced = {n for r in result.report["regions"] if r["status"] == "replaced" for n in r["ops"]}
    assert {n.name for n in model.graph.node if n.op_type in ("MatMul", "Softmax")} <= replaced
    values = feeds(model, rng)
    (want,), (stock,) = run_model(model, values), run_model(result.model, values)
    assert stock.tobytes() == want.tobytes()
    session = mirage_onnx.InferenceSession(result.model.SerializeToString(), emulate=True)
    (got,) = session.run(None, values)
    assert all(n >= 1 for n in mirage_onnx.launches(session).values())
    np.testing.assert_allclose(got.astype(float), want.astype(float), rtol=TOLERANCE, atol=1e-3)


def test_without_it_they_stay():
    net, y = attention(5, 96)
    result = mirage_onnx.optimize(net.model(y), target="h200", workers=1, margin=-20.0)
    assert result.report["barriers"]["WEIGHT_RUNTIME"] == 2
