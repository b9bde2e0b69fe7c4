"""Marks of nodes are found by their key, and go without what else a node says of itself."""

from onnx import NodeProto

from mirage_onnx.importer.marks import mark_of, without_marks


def node(**said):
  made = NodeProto()
  for key, value in said.items():
    made.metadata_props.add(key=key, value=value)
  return made


def test_a_mark_is_what_its_key_says():
  made = node(other="x", mine="y z")
  assert mark_of(made, "mine") == "y z" and mark_of(made, "none") == "" == mark_of(NodeProto(), "mine")


def test_others_stay_in_their_order():
  some = node(a="1", mine="2", b="3", theirs="4"), node(b="5")
  without_marks(some, "mine", "theirs")
  assert [[(p.key, p.value) for p in n.metadata_props] for n in some] == [
    [("a", "1"), ("b", "3")],
    [("b", "5")],
  ]
