"""Recordings as sources, and transcripts: sound, features, prefixes, words, voice activity, formats."""

from pybeam.speech.alignment import Aligner, AlignmentWindow, TokenTimes
from pybeam.speech.features import (
    FeatureExtractor,
    FireRedFeatureExtractor,
    WhisperFeatureExtractor,
    load_feature_extractor,
)
from pybeam.speech.pcm import RawSound
from pybeam.speech.sound import SoundFile, read_sound, read_wav, sound_seconds
from pybeam.speech.transcript import (
    Segment,
    Stretch,
    Transcript,
    TranscriptWriter,
    Word,
    format_transcript,
)
from pybeam.speech.utterances import SpeechStart, Utterance, UtteranceFinder
from pybeam.speech.voice_activity import SpeechRules, VoiceActivity
from pybeam.speech.whisper.assets import Transcription, load_transcription
from pybeam.speech.whisper.recording import LongFeatures
from pybeam.speech.whisper.timestamps import whisper_timestamps
from pybeam.speech.words import WordFinder

__all__ = [
    "Aligner",
    "AlignmentWindow",
    "FeatureExtractor",
    "FireRedFeatureExtractor",
    "LongFeatures",
    "RawSound",
    "Segment",
    "SoundFile",
    "SpeechRules",
    "SpeechStart",
    "Stretch",
    "TokenTimes",
    "Transcript",
    "TranscriptWriter",
    "Transcription",
    "Utterance",
    "UtteranceFinder",
    "VoiceActivity",
    "WhisperFeatureExtractor",
    "Word",
    "WordFinder",
    "format_transcript",
    "load_feature_extractor",
    "load_transcription",
    "read_sound",
    "read_wav",
    "sound_seconds",
    "whisper_timestamps",
]
