"""Sharpness-aware training and feature quality for PyTorch."""

__version__ = "0.1.0"
