"""`WhisperModel` and `BatchedInferencePipeline` of faster-whisper 1.2.1, over `pybeam.Transcriber`.

A program that imports from here in place of `faster_whisper` runs as it is. Names, arguments, defaults and
results are the same. Other names of faster-whisper are refused by name.
"""

from pybeam.compat.faster_whisper.audio import decode_audio
from pybeam.compat.faster_whisper.batched import BatchedInferencePipeline
from pybeam.compat.faster_whisper.download import available_models, download_model
from pybeam.compat.faster_whisper.results import (
    Segment,
    TranscriptionInfo,
    TranscriptionOptions,
    VadOptions,
    Word,
    format_timestamp,
)
from pybeam.compat.faster_whisper.transcribe import WhisperModel

__all__ = [
    "BatchedInferencePipeline",
    "Segment",
    "TranscriptionInfo",
    "TranscriptionOptions",
    "VadOptions",
    "WhisperModel",
    "Word",
    "available_models",
    "decode_audio",
    "download_model",
    "format_timestamp",
]
