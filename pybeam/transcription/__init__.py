"""Recordings of any length, transcribed window by window with Whisper models."""

from pybeam.transcription.options import TranscriptionOptions
from pybeam.transcription.recording import Progress, Recording
from pybeam.transcription.search import beam_search
from pybeam.transcription.transcriber import TranscribeError, Transcriber

__all__ = [
    "Progress",
    "Recording",
    "TranscribeError",
    "Transcriber",
    "TranscriptionOptions",
    "beam_search",
]
