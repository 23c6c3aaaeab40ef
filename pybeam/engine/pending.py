"""`PendingReport`: a report that is under way from the device to the host."""

from __future__ import annotations

from typing import NamedTuple

from pybeam.backends.transfer import HostCopy
from pybeam.engine.partials import PartialReader


class PendingReport(NamedTuple):
    """A report that is being copied to the host."""

    copy: HostCopy
    slots: tuple[int, ...]  # slots of the sources that were live
    claimed_pages: int  # pages that had been claimed when it was sent for
    reader: PartialReader | None  # what is read of sources that are watched, behind the report
    errors: dict[int, Exception]  # by slot, of sources that failed in this step or must leave
