"""Recordings of any length, transcribed window by window with Whisper models."""

from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Progress, Recording
from pybeam.speech.whisper.requests import beam_search
from pybeam.speech.whisper.transcriber import TranscribeError, Transcriber

__all__ = [
    "Progress",
    "Recording",
    "TranscribeError",
    "Transcriber",
    "TranscriptionOptions",
    "beam_search",
]
