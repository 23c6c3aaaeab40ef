"""Exported models from strangers: an error names the file, and no file outside is opened."""

from __future__ import annotations

import shutil

import pytest

import pybeam
from pybeam.models.onnx.external import check_external
from support.built_in_models import saved
from support.mutations import check_mutations

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")
pytest.importorskip("onnx_ir")

PARTS = ("encoder.onnx", "decoder.onnx")


@pytest.fixture(scope="module")
def exported(tmp_path_factory):
    """The directories of two exported models."""
    found = []
    for kind in ("m2m_100", "rnn"):
        directory = tmp_path_factory.mktemp(kind)
        [original] = saved(kind, directory / "original")
        pybeam.export.export_onnx(pybeam.load_model(original), directory / "graphs")
        (directory / "graphs" / "search.onnx").unlink(missing_ok=True)
        found.append(directory / "graphs")
    return found


def test_odd_graphs_are_named(exported, tmp_path):
    for directory in exported:
        check_mutations(directory, tmp_path / directory.parent.name, pybeam.load_model, range(6))


@pytest.mark.slow
def test_many_odd_graphs_are_named(exported, tmp_path):
    for directory in exported:
        copy = tmp_path / directory.parent.name
        check_mutations(directory, copy, pybeam.load_model, range(6, 200))


@pytest.mark.parametrize("part", PARTS)
def test_graphs_of_another_model_or_swapped_ones_are_refused(exported, tmp_path, part):
    first, second = exported
    for place, strangers in enumerate([(first, PARTS[part == PARTS[0]]), (second, part)]):
        directory = shutil.copytree(first, tmp_path / str(place))
        shutil.copy(strangers[0] / strangers[1], directory / part)
        with pytest.raises(ValueError, match=rf"{part} must be a graph of .* config.json"):
            pybeam.load_model(directory)


def hidden(tensor, place: str):
    """A graph that holds this tensor at some place."""
    helper = onnx.helper
    constant = helper.make_node("Constant", [], ["w"], value=tensor)
    node = helper.make_node("Identity", ["w"], ["y"])
    output = helper.make_tensor_value_info("y", 1, [4])
    nodes, weights = [node], [tensor]
    if place == "constant":
        nodes, weights = [constant, node], []
    elif place == "branch":
        inner = helper.make_graph([constant], "inner", [], [output])
        nodes, weights = [helper.make_node("If", ["c"], ["y"], then_branch=inner)], []
    model = helper.make_model(helper.make_graph(nodes, "g", [], [output], weights))
    if place == "function":
        opset = helper.make_opsetid("", 17)
        del model.graph.initializer[:]
        model.functions.append(helper.make_function("d", "f", [], ["w"], [constant], [opset]))
    return model


@pytest.mark.parametrize("place", ["weight", "constant", "branch", "function"])
@pytest.mark.parametrize("location", ["/etc/passwd", "../secret", "a/../../secret", ".."])
def test_a_graph_may_name_files_of_its_own_folder_alone(tmp_path, place, location):
    path = tmp_path / "decoder.onnx"
    for name in (location, "decoder.onnx.data"):
        tensor = onnx.TensorProto(name="w", data_type=1, dims=[4], data_location=1)
        for key, value in (("offset", "0"), ("location", name)):
            tensor.external_data.add(key=key, value=value)
        path.write_bytes(hidden(tensor, place).SerializeToString())
        if name != location:
            check_external(path)
            continue
        with pytest.raises(ValueError, match=r"must name files in its own folder, but names"):
            check_external(path)
