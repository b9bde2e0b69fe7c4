"""Bad input: a stable code and one sentence each, never a traceback."""

from __future__ import annotations

import os
import random
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from mirage_onnx.errors import MirageError
from mirage_onnx.importer import atoms, import_model, load_model

MODELS = Path(__file__).resolve().parents[2] / "models"
SMALL = MODELS / "rmsnorm_linear.onnx"
F32 = np.float32


def refusal(source, **kwargs) -> str:
    """``CODE: detail`` of what loading raises."""
    with pytest.raises(MirageError) as e:
        load_model(source, **kwargs)
    assert e.value.__cause__ is None
    assert "\n" not in e.value.detail and "Traceback" not in e.value.detail
    return f"{e.value.code}: {e.value.detail}"


def relu(bench, **kwargs):
    return bench.model(
        helper.make_node("Relu", ["x"], ["y"]), {"x": (F32, [2, 3])}, ["y"], **kwargs
    )


class TestFile:
    def test_missing(self, tmp_path):
        path = tmp_path / "no.onnx"
        assert refusal(path) == f"FILE_MISSING: '{path}' does not exist"

    def test_folder(self, tmp_path):
        assert refusal(tmp_path) == f"FILE_UNREADABLE: '{tmp_path}' is not a file"

    def test_unreadable(self, tmp_path, monkeypatch):
        path = tmp_path / "m.onnx"
        path.touch()

        def deny(self):
            raise PermissionError(13, os.strerror(13))

        monkeypatch.setattr(Path, "read_bytes", deny)
        assert refusal(path) == f"FILE_UNREADABLE: '{path}': Permission denied"

    def test_empty(self, tmp_path):
        path = tmp_path / "m.onnx"
        path.touch()
        assert refusal(path) == f"NOT_ONNX: '{path}' is empty"

    def test_too_large_for_protobuf(self, tmp_path):
        path = tmp_path / "m.onnx"
        with path.open("wb") as file:
            file.truncate(2**31)
        assert refusal(path) == f"NOT_ONNX: '{path}' is larger than 2 GiB in one file"

    def test_text(self, tmp_path):
        path = tmp_path / "m.onnx"
        path.write_text("this is no model, it is a sentence")
        assert refusal(str(path)) == (
            f"NOT_ONNX: '{path}' is not a protobuf message, or is cut off"
        )

    def test_no_graph(self, tmp_path, bench):
        path = tmp_path / "m.onnx"
        path.write_bytes(onnx.ModelProto(ir_version=10).SerializeToString())
        assert refusal(path) == f"NOT_ONNX: '{path}' has no graph"
        assert refusal(onnx.ModelProto()) == "NOT_ONNX: the model in memory has no graph"

    @pytest.mark.parametrize("seed", range(20))
    def test_random_bytes(self, tmp_path, seed):
        path = tmp_path / "m.onnx"
        path.write_bytes(random.Random(seed).randbytes(1000))
        assert refusal(path).startswith("NOT_ONNX: ")

    def test_truncated(self, tmp_path):
        """Cut anywhere, the file is refused; nearly everywhere as no ONNX file."""
        data, path = SMALL.read_bytes(), tmp_path / "m.onnx"
        codes = []
        for end in range(0, len(data), 97):
            path.write_bytes(data[:end])
            codes.append(refusal(path).split(":")[0])
        assert set(codes) <= {"NOT_ONNX", "MODEL_INVALID", "OPSET_UNSUPPORTED"}
        assert codes.count("NOT_ONNX") > 0.9 * len(codes)

    def test_damaged(self, tmp_path):
        """A changed byte in names, types and attributes gives a code or a model, nothing else."""
        data, path, rng = SMALL.read_bytes(), tmp_path / "m.onnx", random.Random(0)
        done = 0
        for _ in range(200):
            damaged = bytearray(data)
            damaged[rng.randrange(1200)] = rng.randrange(256)
            path.write_bytes(damaged)
            try:
                loaded = load_model(path)
                program = import_model(loaded)
                atoms(loaded, program.constants)
            except MirageError as e:
                assert "\n" not in e.detail
            else:
                done += 1
        assert 0 < done < 200


class TestGraph:
    def test_undefined_name(self, bench):
        model = relu(bench)
        model.graph.node[0].input[0] = "z"
        assert refusal(model) == "MODEL_INVALID: node Relu #0 reads 'z', which nothing defines"

    def test_undefined_output(self, bench):
        model = relu(bench)
        model.graph.output[0].name = "z"
        assert refusal(model) == "MODEL_INVALID: the graph output 'z' is defined by nothing"

    def test_defined_twice(self, bench):
        model = relu(bench)
        model.graph.node.append(helper.make_node("Neg", ["x"], ["y"], name="again"))
        assert refusal(model) == (
            "MODEL_INVALID: the value 'y' is defined twice: node Relu #0 and node 'again'"
        )

    def test_node_defines_an_input(self, bench):
        model = relu(bench)
        model.graph.node.append(helper.make_node("Neg", ["y"], ["x"]))
        assert refusal(model) == (
            "MODEL_INVALID: the value 'x' is defined twice: a graph input and node Neg #1"
        )

    def test_two_initializers(self, bench):
        model = relu(bench, weights={"w": np.ones(3, F32)})
        model.graph.initializer.append(model.graph.initializer[0])
        assert "MODEL_INVALID: the value 'w' is defined twice" in refusal(model)
        model = relu(bench, weights={"x": np.ones((2, 3), F32)})
        model.graph.initializer.append(model.graph.initializer[0])
        assert refusal(model) == "MODEL_INVALID: two initializers are called 'x'"

    def test_cycle(self, bench):
        nodes = [
            helper.make_node("Relu", ["x"], ["a"], name="before"),
            helper.make_node("Add", ["a", "d"], ["b"], name="one"),
            helper.make_node("Neg", ["b"], ["c"]),
            helper.make_node("Exp", ["c"], ["d"], name="three"),
            helper.make_node("Abs", ["d"], ["y"], name="after"),
        ]
        model = bench.model(nodes, {"x": (F32, [2])}, ["y"])
        assert refusal(model) == (
            "MODEL_INVALID: the graph has a cycle: 'one' -> Neg #2 -> 'three' -> 'one'"
        )

    def test_long_cycle_is_cut(self, bench):
        nodes = [helper.make_node("Relu", [f"v{(i - 1) % 30}"], [f"v{i}"]) for i in range(30)]
        model = bench.model(nodes, {"x": (F32, [2])}, ["v0"])
        text = refusal(model)
        assert text.startswith("MODEL_INVALID: the graph has a cycle: ") and " ... -> " in text
        assert text.count("->") == 7

    def test_node_reads_itself(self, bench):
        model = relu(bench)
        model.graph.node[0].input[0] = "y"
        assert refusal(model) == ("MODEL_INVALID: the graph has a cycle: Relu #0 -> Relu #0")

    def test_name_that_is_no_text(self, tmp_path, bench):
        path = tmp_path / "m.onnx"
        model = relu(bench)
        model.graph.node[0].name = "QQQQ"
        path.write_bytes(model.SerializeToString().replace(b"QQQQ", b"Q\xff\xfeQ"))
        assert refusal(path) == "MODEL_INVALID: the name b'Q\\xff\\xfeQ' is not UTF-8 text"


class TestTypes:
    def test_shapes(self, bench):
        node = helper.make_node("Add", ["x", "w"], ["y"], name="sum")
        model = bench.model(node, {"x": (F32, [2, 3]), "w": (F32, [4])}, ["y"])
        text = refusal(model)
        assert text.startswith("MODEL_INVALID: (op_type:Add, node name: sum): Incompatible")

    def test_types(self, bench):
        node = helper.make_node("Add", ["x", "w"], ["y"])
        model = bench.model(node, {"x": (F32, [2]), "w": (np.float16, [2])}, ["y"])
        assert refusal(model).startswith("MODEL_INVALID: (op_type:Add): B has inconsistent type")

    def test_attributes(self, bench):
        for attributes, said in (
            ({"axis": 1.5}, "Mismatched attribute type"),
            ({"axle": 1}, "Unrecognized attribute: axle for operator Softmax"),
        ):
            node = helper.make_node("Softmax", ["x"], ["y"], name="s", **attributes)
            text = refusal(bench.model(node, {"x": (F32, [2])}, ["y"]))
            assert text.startswith("MODEL_INVALID: node 's': ") and said in text

    def test_arity(self, bench):
        node = helper.make_node("Add", ["x"], ["y"])
        text = refusal(bench.model(node, {"x": (F32, [2])}, ["y"]))
        assert text.startswith("MODEL_INVALID: node Add #0: Node with schema(::Add:14)")

    def test_wrong_declared_type_of_output(self, bench):
        model = relu(bench)
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("y", 10, [2, 3]))
        assert refusal(model).startswith("MODEL_INVALID: (op_type:Relu): Inferred elem type")

    def test_tensor_of_wrong_size(self, bench):
        model = relu(bench, weights={"w": np.ones((2, 3), F32)})
        model.graph.initializer[0].raw_data = b"1234"
        assert refusal(model) == (
            "MODEL_INVALID: the tensor 'w' of shape [2, 3] holds 4 bytes instead of 24"
        )
        model.graph.initializer[0].ClearField("raw_data")
        model.graph.initializer[0].float_data.extend([1.0] * 5)
        assert refusal(model) == (
            "MODEL_INVALID: the tensor 'w' of shape [2, 3] holds 5 elements instead of 6"
        )
        model.graph.initializer[0].dims[0] = -2
        assert refusal(model) == "MODEL_INVALID: the tensor 'w' has a negative dimension"

    def test_domain_without_import(self, bench):
        node = helper.make_node("Foo", ["x"], ["y"], domain="my.domain", name="f")
        assert refusal(bench.model(node, {"x": (F32, [2])}, ["y"])) == (
            "MODEL_INVALID: node 'f' is of domain 'my.domain', which the model does not import"
        )


class TestAccepted:
    """What ONNX Runtime loads and a stricter reader would refuse."""

    def test_stale_shapes(self, bench):
        """Declared shapes that contradict the operators are no reason."""
        model = relu(bench)
        model.graph.node.append(helper.make_node("Neg", ["y"], ["z"]))
        model.graph.value_info.append(helper.make_tensor_value_info("y", 1, [7, 7]))
        model.graph.output[0].CopyFrom(helper.make_tensor_value_info("z", 1, [9]))
        program = bench.program(model)
        assert program.tensors["y"].shape == program.tensors["z"].shape == (2, 3)

    def test_nodes_in_any_order(self, bench):
        nodes = [helper.make_node("Relu", ["a"], ["y"]), helper.make_node("Neg", ["x"], ["a"])]
        model = bench.model(nodes, {"x": (F32, [2])}, ["y"])
        loaded = load_model(model)
        assert loaded.order == (1, 0)
        assert [n.name for n in import_model(loaded).nodes] == ["Neg_1", "Relu_0"]
        assert loaded.node("Neg_1").op_type == "Neg"
        bench.agrees(model, {"x": np.array([-1, 2], F32)})

    def test_operators_after_an_unknown_one(self, bench):
        """Nothing is known of their types: that is a reason, not an error."""
        nodes = [
            helper.make_node("Foo", ["x"], ["a"], domain="my.domain"),
            helper.make_node("Relu", ["a"], ["y"]),
            helper.make_node("Add", ["y", "x"], ["z"]),
        ]
        model = bench.model(nodes, {"x": (F32, [2])}, ["z"], domains=["my.domain"])
        assert bench.barrier(model, 0) == "CUSTOM_DOMAIN: Foo: belongs to domain 'my.domain'"
        assert bench.barrier(model, 1) == "RANK_UNKNOWN: Relu: the type of 'a' is not known"
        assert bench.barrier(model, 2) == "RANK_UNKNOWN: Add: the type of 'y' is not known"

    def test_declared_output_of_an_unknown_operator(self, bench):
        model = bench.model(
            [
                helper.make_node("Foo", ["x"], ["a"], domain="my.domain"),
                helper.make_node("Relu", ["a"], ["y"]),
            ],
            {"x": (F32, [2])}, ["y"], domains=["my.domain"],
        )  # fmt: skip
        model.graph.value_info.append(helper.make_tensor_value_info("a", 1, [5]))
        assert bench.program(model).nodes[1].barrier is None

    def test_default_domain_by_its_other_name(self, bench):
        node = helper.make_node("Relu", ["x"], ["y"], domain="ai.onnx")
        model = bench.model(node, {"x": (F32, [2])}, ["y"])
        bench.agrees(model, {"x": np.array([-1, 2], F32)})

    def test_empty_lists(self, bench):
        """The shape of a scalar is an empty list, not a weight of size 0."""
        arrays = [np.ones((1, 1), F32), np.array([], np.int64)]
        bench.agrees(*bench.one("Reshape", arrays, weights=(1,)))

    def test_models_of_any_ir_version(self, bench):
        model = relu(bench)
        for version in (3, 8, 10, 99):
            model.ir_version = version
            assert bench.program(model).nodes[0].barrier is None


class TestOpset:
    @pytest.mark.parametrize("opset", [7, 12, 25, 99])
    def test_outside(self, bench, opset):
        assert refusal(relu(bench, opset=opset)) == (
            f"OPSET_UNSUPPORTED: the model has opset {opset}, supported are 13 to 24"
        )

    @pytest.mark.parametrize("opset", range(13, 25))
    def test_inside(self, bench, opset):
        bench.agrees(relu(bench, opset=opset), {"x": np.ones((2, 3), F32)})

    def test_none(self, bench):
        model = relu(bench)
        del model.opset_import[:]
        assert refusal(model) == (
            "OPSET_UNSUPPORTED: the model imports no opset of the default domain, "
            "which node Relu #0 needs"
        )

    def test_two(self, bench):
        model = relu(bench)
        model.opset_import.append(helper.make_opsetid("ai.onnx", 14))
        assert refusal(model) == (
            "MODEL_INVALID: two opset versions are imported for the default domain"
        )


class TestZeroSize:
    def test_input(self, bench):
        model = relu(bench)
        model.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 0
        assert refusal(model) == "ZERO_SIZE: dimension 1 of the graph input 'x' is 0"

    @pytest.mark.parametrize("shape", [(0,), (3, 0)])
    def test_weight(self, bench, shape):
        node = helper.make_node("Concat", ["x", "w"], ["y"], axis=len(shape) - 1)
        model = bench.model(node, {"x": (F32, [3] * len(shape))}, ["y"],
                            {"w": np.zeros(shape, F32)})  # fmt: skip
        assert refusal(model) == f"ZERO_SIZE: dimension {len(shape) - 1} of the weight 'w' is 0"


class TestExternal:
    @pytest.fixture
    def path(self, tmp_path, bench):
        """A model with its 4x8 weight and a scalar in w.bin."""
        nodes = [
            helper.make_node("MatMul", ["x", "w"], ["a"]),
            helper.make_node("Mul", ["a", "s"], ["y"]),
        ]
        rng = np.random.default_rng(0)
        weights = {"w": rng.standard_normal((4, 8)).astype(F32), "s": np.array(0.125, F32)}
        model = bench.model(nodes, {"x": (F32, [2, 4])}, ["y"], weights)
        path = tmp_path / "m.onnx"
        onnx.save(model, path, save_as_external_data=True, location="w.bin", size_threshold=0)
        return path

    def change(self, path, **entries):
        model = onnx.load(path, load_external_data=False)
        kept = {e.key: e.value for e in model.graph.initializer[0].external_data} | entries
        del model.graph.initializer[0].external_data[:]
        for key, value in kept.items():
            if value is not None:
                model.graph.initializer[0].external_data.add(key=key, value=value)
        path.write_bytes(model.SerializeToString())

    def test_read(self, path):
        loaded = load_model(path)
        program = import_model(loaded)
        assert loaded.proto.graph.initializer[0].data_location == TensorProto.EXTERNAL
        assert program.constants["s"].base == 0.125
        assert program.tensors["y"].shape == (2, 8)
        assert loaded.read(loaded.initializers["w"]).shape == (4, 8)
        assert all(n.barrier is None for n in program.nodes)

    def test_missing(self, path):
        (path.parent / "w.bin").unlink()
        assert refusal(path) == "EXTERNAL_DATA_MISSING: the tensor 'w' is in the file 'w.bin'"

    def test_short(self, path):
        data = path.parent / "w.bin"
        data.write_bytes(data.read_bytes()[:100])
        assert refusal(path) == (
            "EXTERNAL_DATA_MISSING: the tensor 'w' ends at byte 128 of 'w.bin', which has 100 bytes"
        )

    @pytest.mark.parametrize(
        "location", ["../w.bin", "a/../../w.bin", "/etc/passwd", "C:\\w.bin", "..\\w.bin"]
    )
    def test_outside(self, path, location):
        self.change(path, location=location)
        assert refusal(path) == (
            f"EXTERNAL_DATA_MISSING: the tensor 'w' refers to {location!r}, "
            "outside the model's folder"
        )

    @pytest.mark.parametrize("location", [".", "sub", "", None])
    def test_no_file(self, path, location):
        (path.parent / "sub").mkdir()
        self.change(path, location=location)
        assert refusal(path).startswith("EXTERNAL_DATA_MISSING: the tensor 'w' ")

    def test_entries(self, path):
        self.change(path, offset="many")
        assert refusal(path) == (
            "MODEL_INVALID: the tensor 'w' has an external offset or length that is not a number"
        )
        self.change(path, offset="0", length="4")
        assert refusal(path) == (
            "MODEL_INVALID: the tensor 'w' needs 128 bytes, its external entry has 4"
        )

    def test_link(self, path):
        """Model hubs keep weights elsewhere and link to them."""
        store = path.parent / "blobs"
        store.mkdir()
        (path.parent / "w.bin").rename(store / "abc")
        (path.parent / "w.bin").symlink_to(store / "abc")
        assert import_model(load_model(path)).constants["s"].base == 0.125

    def test_in_memory(self, path):
        model = onnx.load(path, load_external_data=False)
        assert refusal(model) == (
            "EXTERNAL_DATA_MISSING: the tensor 'w' is in the file 'w.bin', "
            "and a model in memory has no folder"
        )
        assert load_model(model, base_dir=path.parent).base_dir == path.parent


class TestNames:
    def test_unique(self, bench):
        """Empty and repeated names give way, in the order of the file."""
        names = ["", "a", "a", "Relu_0", ""]
        nodes = [
            helper.make_node("Relu", [f"v{i}"], [f"v{i + 1}"], name=n) for i, n in enumerate(names)
        ]
        loaded = load_model(bench.model(nodes, {"v0": (F32, [2])}, ["v5"]))
        assert loaded.node_names == ("Relu_0_", "a", "Relu_2", "Relu_0", "Relu_4")
        assert loaded.node_index["Relu_2"] == 2
        assert [n.name for n in import_model(loaded).nodes] == list(loaded.node_names)

    def test_the_model_is_not_changed(self, bench):
        model = relu(bench, weights={"w": np.ones((2, 3), F32)})
        before = model.SerializeToString(deterministic=True)
        import_model(load_model(model))
        assert model.SerializeToString(deterministic=True) == before


def test_large_weights_are_not_copied(bench, monkeypatch):
    """Inference sees the shape of a weight, not its bytes."""
    sizes = []
    infer = onnx.shape_inference.infer_shapes
    monkeypatch.setattr(
        onnx.shape_inference, "infer_shapes",
        lambda m, **k: sizes.append(m.ByteSize()) or infer(m, **k),
    )  # fmt: skip
    weight = np.ones((512, 512), F32)
    constant = helper.make_node("Constant", [], ["c"], value=numpy_helper.from_array(weight))
    node = helper.make_node("MatMul", ["x", "w"], ["a"])
    last = helper.make_node("Add", ["a", "c"], ["y"])
    model = bench.model([constant, node, last], {"x": (F32, [512, 512])}, ["y"], {"w": weight})
    program = bench.program(model)
    assert sizes and max(sizes) < 2000
    assert program.weights == {"w", "c"} and program.tensors["c"].shape == (512, 512)
