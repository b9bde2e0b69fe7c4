"""Models of IR versions before 4, which list every initializer among the graph's inputs too.

ONNX Runtime takes no values for these: to it they are constants, and it folds them. In a model of a
later version (functions need 8) an initializer that is an input may be fed, so it stays no input.
"""

from onnx import ModelProto

#: First IR version in which an initializer need not be an input.
FREE_INITIALIZERS = 4


def without_old_inputs(model: ModelProto) -> ModelProto:
  """The same model of at least that version; ``model`` itself where it is one."""
  weights = {t.name for t in model.graph.initializer}
  if model.ir_version >= FREE_INITIALIZERS or weights.isdisjoint(i.name for i in model.graph.input):
    return model
  result = ModelProto()
  result.CopyFrom(model)
  result.ir_version = FREE_INITIALIZERS
  inputs = [i for i in model.graph.input if i.name not in weights]
  del result.graph.input[:]
  result.graph.input.extend(inputs)
  return result
