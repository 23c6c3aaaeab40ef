"""Recordings as sources: features of sound, and the prefix and processors that a model needs."""

from pybeam.speech.features import (
    FeatureExtractor,
    FireRedFeatureExtractor,
    WhisperFeatureExtractor,
    load_feature_extractor,
    read_wav,
)
from pybeam.speech.transcription import Transcription, load_transcription

__all__ = [
    "FeatureExtractor",
    "FireRedFeatureExtractor",
    "Transcription",
    "WhisperFeatureExtractor",
    "load_feature_extractor",
    "load_transcription",
    "read_wav",
]
