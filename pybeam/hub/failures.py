"""Turn failures of a download into errors that name the repository, what happened, and the remedy."""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Iterator

LOG_IN = "log in with `hf auth login`, or set HF_TOKEN to a token that may read it"


def require_hub() -> None:
    """Raise ImportError if the package huggingface_hub is not installed."""
    try:
        import huggingface_hub  # noqa: F401
    except ModuleNotFoundError as error:
        raise ImportError(
            f"{error}; models of the Hugging Face hub, and pickled ones, need `pip install huggingface_hub`"
        ) from error


@contextlib.contextmanager
def explained(name: str, revision: str | None, endpoint: str) -> Iterator[None]:
    """In this block, errors of huggingface_hub become the ones that `fetch` documents."""
    from huggingface_hub.utils import (
        GatedRepoError,
        HfHubHTTPError,
        LocalEntryNotFoundError,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    place = f"{name} on {endpoint}"
    try:
        yield
    except GatedRepoError as error:
        raise PermissionError(
            f"{place} is gated: its page asks you to accept its terms first; then {LOG_IN}"
        ) from error
    except RevisionNotFoundError as error:
        raise FileNotFoundError(
            f"{place} must have the revision {revision!r}, but has no such branch, tag or commit"
        ) from error
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(
            f"there is neither a folder {name} nor, as far as you may see, a repository {place}; if a folder "
            f"is meant, give its path; if the repository is private, {LOG_IN}"
        ) from error
    # of a file that may not be read, or of a hub that went away
    except LocalEntryNotFoundError as error:
        raise _refused(place, error.__cause__ or error) from error
    except HfHubHTTPError as error:
        raise _refused(place, error) from error
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise OSError(
                error.errno,
                f"the disk is full, so {place} could not be downloaded; free some space, or give another "
                "cache (HF_HOME, or `cache_dir`)",
            ) from error
        if error.errno is not None:
            raise
        raise _broken(place, error) from error
    # a page in the place of the hub's answer, such as that of a network that asks who is there
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise _broken(place, error) from error
    except ValueError:
        raise
    # whatever the package for HTTP raises, which depends on the version of huggingface_hub
    except Exception as error:
        raise _broken(place, error) from error


def _refused(place: str, error: BaseException) -> OSError:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403):
        return PermissionError(f"{place} may not be read (HTTP {status}): {LOG_IN}")
    return _broken(place, error)


def _broken(place: str, error: BaseException) -> ConnectionError:
    reason = " ".join(str(error).split()) or type(error).__name__
    return ConnectionError(
        f"there is no such folder, and {place} could not be downloaded: {reason}; files that were complete "
        "stay in the cache, so try again. Without a connection, HF_HUB_OFFLINE=1 takes models from the cache"
    )
