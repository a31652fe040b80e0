"""Data sets in which two features, one easy and one hard, both predict the label."""

from samphire.data.catalog import SETS, load
from samphire.data.check import CheckResult, check
from samphire.data.get import get
from samphire.data.opening import Opened, open
from samphire.data.split import Split

__all__ = ["SETS", "Split", "load", "check", "CheckResult", "get", "Opened", "open"]
