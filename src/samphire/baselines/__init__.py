"""What sharpness-aware training is compared with: losses, averages of weights, balanced data."""
