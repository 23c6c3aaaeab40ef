"""Models that ONNX Runtime runs. These are the files of such a folder."""

ENCODER, DECODER, SEARCH = "encoder.onnx", "decoder.onnx", "search.onnx"
FEATURES = "features.onnx"
