"""Open sound files of a few kinds with FFmpeg's libraries, which then read their bytes and nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

# what FFmpeg calls the containers that are opened; others may name files and hosts of their own
CONTAINERS = ("amr", "au", "caf", "flac", "matroska", "mp3", "ogg", "w64", "wav")
KINDS = "WAV, W64, AU, CAF, FLAC, MP3, AAC, AMR, Ogg, MP4, MOV, Matroska or WebM"
# and the decoders of sound
CODECS = (
    *(
        "aac",
        "ac3",
        "adpcm_ima_wav",
        "adpcm_ms",
        "alac",
        "amrnb",
        "amrwb",
        "eac3",
        "flac",
        "libopus",
    ),
    *(
        "mp2",
        "mp2float",
        "mp3",
        "mp3float",
        "opus",
        "pcm_alaw",
        "pcm_f32be",
        "pcm_f32le",
        "pcm_f64be",
    ),
    *("pcm_f64le", "pcm_mulaw", "pcm_s16be", "pcm_s16le", "pcm_s24be", "pcm_s24le", "pcm_s32be"),
    *("pcm_s32le", "pcm_s8", "pcm_u8", "vorbis"),
)
OPTIONS = {
    "codec_whitelist": ",".join(CODECS),
    # the bytes come from Python, which is no protocol
    "protocol_whitelist": "none",
    "enable_drefs": "0",
    "use_absolute_path": "0",
    "max_streams": "64",
}
# Hz, and channels; a frame of few samples at 1 Hz would become many
RATES, MOST_CHANNELS = range(1000, 768_001), 64


class Damaged(ValueError):
    """Sound that cannot be read, with a message for the user."""


def opened(av: Any, content: Any, name: str, containers: Sequence[str] = CONTAINERS) -> Any:
    """Return the package av's container of what a file holds, if it is one of these.

    Raises:
        Damaged: it is none of `KINDS`, or damaged.
    """

    def refuse(*asked: Any) -> NoReturn:
        raise Damaged(f"{name} must hold its own sound, but refers to {asked[0]!r}")

    options = OPTIONS | {"format_whitelist": ",".join(containers)}
    try:
        return av.open(
            content, "r", metadata_errors="ignore", container_options=options, io_open=refuse
        )
    except Damaged:
        raise
    except (av.FFmpegError, ValueError) as error:
        raise Damaged(
            f"{name} cannot be read as sound: {reason_of(error)}; it must be {KINDS}"
        ) from error


def reason_of(error: Exception) -> str:
    """Return what FFmpeg says."""
    return getattr(error, "strerror", None) or str(error)


def sound_of(container: Any, name: str) -> Any:
    """Return the first sound track of a container.

    Raises:
        Damaged: there is none, or its codec or its form is not among those that are decoded.
    """
    if not container.streams.audio:
        raise Damaged(f"{name} has no sound")
    stream = container.streams.audio[0]
    codec = stream.codec_context and stream.codec_context.name
    if codec not in CODECS:
        raise Damaged(
            f"{name} must have sound of a codec that pybeam decodes, but has {codec or 'an unknown one'}; "
            "convert it: `ffmpeg -i in -c:a flac out.flac`"
        )
    return stream


def check_form(frame: Any, name: str) -> None:
    """Refuse sound whose rate or channels would take more memory than its seconds say."""
    num_channels = len(frame.layout.channels)
    if frame.sample_rate not in RATES or num_channels > MOST_CHANNELS:
        raise Damaged(
            f"{name} must have {RATES[0]} to {RATES[-1]} Hz and at most {MOST_CHANNELS} channels, but has "
            f"{frame.sample_rate} Hz and {num_channels}"
        )
