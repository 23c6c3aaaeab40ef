"""Corpora and services on a Ray cluster; needs `pip install "pybeam-search[ray]"`.

`import ray` in this folder is Ray itself: imports are absolute.
"""

try:
    import ray.data as _data  # noqa: F401
except ModuleNotFoundError as error:
    raise ImportError(f"{error}; `pybeam.ray` needs `pip install 'pybeam-search[ray]'`") from error

from pybeam.ray.data import translate
from pybeam.ray.weights import SharedModel, share_model

__all__ = ["SharedModel", "share_model", "translate"]
