"""Recordings of any length, transcribed window by window with Whisper models."""

from pybeam.speech.whisper.assets import WhisperAssets
from pybeam.speech.whisper.languages import DetectedLanguage
from pybeam.speech.whisper.options import TranscriptionOptions
from pybeam.speech.whisper.recording import Progress, Recording
from pybeam.speech.whisper.requests import beam_search
from pybeam.speech.whisper.transcriber import TranscribeError, Transcriber

__all__ = [
    "DetectedLanguage",
    "Progress",
    "Recording",
    "TranscribeError",
    "Transcriber",
    "TranscriptionOptions",
    "WhisperAssets",
    "beam_search",
]
