"""Forms of deployed operators: each is imported, and those with a sink or smooth softmax have programs."""

import deployed_forms
import pytest

from mirage_onnx.importer import import_model, load_model
from mirage_onnx.target import get_target


def test_every_form_is_read():
  """A form is lowered, or has a reason; none twice."""
  made = dict(deployed_forms.cases())
  assert len(made) == len([*deployed_forms.cases()]) > 250
  for name, make in [*made.items()][::7]:
    assert import_model(load_model(make())).nodes, name


@pytest.mark.slow
@pytest.mark.parametrize("how", [{"sink": True}, {"smooth_softmax": 1}], ids=str)
def test_scores_beside_the_cache(how):
  made = deployed_forms.grouped(room=256, rotary=False, **how)
  row = deployed_forms.row_of("GroupQueryAttention", made, get_target("h100"), 240.0)
  assert [n for name, n in row["programs"].items() if name.endswith("/attended") and n], row
