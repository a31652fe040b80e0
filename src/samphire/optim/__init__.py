"""Sharpness-aware optimization: the rules, and the optimizer that drives them."""
