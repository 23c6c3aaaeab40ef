"""What files an exported model consists of, and what to install for them."""

from __future__ import annotations

ENCODER, DECODER, SEARCH = "encoder.onnx", "decoder.onnx", "search.onnx"


def missing_package(error: ImportError) -> ImportError:
    """The error with the remedy."""
    return ImportError(
        f"ONNX needs packages that are not installed ({error}); run `pip install 'pybeam[onnx]'`, "
        "or `pip install onnx onnx-ir onnxruntime`"
    )
