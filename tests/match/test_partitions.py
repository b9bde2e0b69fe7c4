"""Parts of concatenations are counted before they are told apart."""

import time

import pytest

from mirage_onnx import api


@pytest.mark.parametrize("axes", [(0,), (0, 1)])
def test_what_is_beside_itself_again_and_again(net, axes):
  """900 bytes of model were 2**30 boxes."""
  x = net.Softsign(net.input(4, 4))
  for i in range(24):
    x = net.Concat(x, x, axis=axes[i % len(axes)])
  model = net.model(x)
  start = time.process_time()
  api.inspect(model, target="h200")
  assert time.process_time() - start < 3
