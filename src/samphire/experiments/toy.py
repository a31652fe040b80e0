"""What the figures of the toy keep of a trained run."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from samphire import mechanisms
from samphire.train import Result


def summary_row(result: Result) -> dict[str, Any]:
    """Settings, final errors, and the ratio of the heads over training (medians, since v~_easy may cross zero)."""
    assert result.v is not None
    assert result.phantom is not None
    phantom, real = mechanisms.summarize_ratio(result.phantom), mechanisms.summarize_ratio(result.v)
    return {
        **asdict(result.config),
        **result.final,
        "collapsed": result.collapsed,
        "phantom_ratio": float(phantom.median),
        "phantom_share": float(phantom.share),
        "real_ratio": float(real.median),
    }
