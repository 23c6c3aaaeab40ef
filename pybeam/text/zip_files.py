"""Zip files of strangers, whose parts are bytes of the file as they are."""

from __future__ import annotations

import zipfile


def plain_parts(archive: zipfile.ZipFile, size: int) -> list[zipfile.ZipInfo]:
    """Return the parts of a zip file of so many bytes.

    Raises:
        ValueError: parts are compressed or encrypted, have one name or overlap.
    """
    parts = archive.infolist()
    if len({part.filename for part in parts}) < len(parts):
        raise ValueError("two of its parts have one name")
    for part in parts:
        is_plain = part.compress_type == zipfile.ZIP_STORED and not part.flag_bits & 1
        if not is_plain or part.file_size != part.compress_size:
            raise ValueError(f"{part.filename} is compressed or encrypted")
    if sum(part.file_size for part in parts) > size:
        raise ValueError("its parts overlap")
    return parts
