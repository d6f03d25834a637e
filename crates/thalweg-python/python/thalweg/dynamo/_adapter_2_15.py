"""The names of PyTorch 2.15 that are not public, and that the backend uses: those of 2.11, which mean the same."""

from ._adapter_2_11 import *  # noqa: F403
