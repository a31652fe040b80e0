"""``python -m samphire``, for torchrun."""

from samphire.cli import main

main()
