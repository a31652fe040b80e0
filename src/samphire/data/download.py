"""Fetch one file over HTTP; a transfer that was cut off continues where it stopped."""

from __future__ import annotations

import http.client
import os
import urllib.error
import urllib.request
from collections.abc import Callable
from functools import partial
from pathlib import Path

from samphire.progress import Progress, silent

MOST_BYTES = 2**30  # of a file; CIFAR-10 has 180 MB
_ATTEMPTS, _TIMEOUT = 3, 30.0

__all__ = ["MOST_BYTES", "download"]


def download(url: str, path: Path, progress: Progress = silent) -> None:
    """Fetch one file; a connection that is cut continues where it stopped, now or in a later call.

    Args:
        url: Its address.
        path: Where the complete file appears; until then the bytes are in ``<path>.part``.
        progress: Counts bytes, under the file's name.
    """
    part = path.with_name(f"{path.name}.part")
    for attempt in range(1, _ATTEMPTS + 1):
        before = _size(part)
        try:
            missing = _resume(url, part, partial(progress, path.name))
        except urllib.error.HTTPError as error:
            error.close()
            if error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise OSError(f"{url} answers {error.code} {error.reason}") from None
            part.unlink()  # longer than the file, so it belongs to another one
            continue
        except (OSError, http.client.HTTPException) as error:
            if attempt == _ATTEMPTS or _size(part) == before:
                raise OSError(f"{url} cannot be read ({getattr(error, 'reason', error)})") from None
            continue
        if not missing:
            os.replace(part, path)
            return
    raise OSError(f"{url} was cut off {_ATTEMPTS} times; the part that arrived is kept, so try again")


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _resume(url: str, part: Path, progress: Callable[[int, int], None]) -> int:
    """Ask for what a partial file lacks, append it, and return how many bytes are still missing."""
    have = _size(part)
    headers = {"User-Agent": "samphire"} | ({"Range": f"bytes={have}-"} if have else {})
    with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=_TIMEOUT) as response:
        have = have if response.status == http.HTTPStatus.PARTIAL_CONTENT else 0
        total = have + int(response.headers.get("Content-Length", 0))
        with part.open("ab" if have else "wb") as file:
            while block := response.read(2**20):
                have += len(block)
                if max(have, total) > MOST_BYTES:
                    raise ValueError(f"{url} has {max(have, total)} bytes, more than the {MOST_BYTES} allowed")
                file.write(block)
                progress(have, max(have, total))
    return max(total - have, 0)
